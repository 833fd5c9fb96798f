/*
 * graph_picture.c - buckets against the traffic: a table for the terminal, a picture as SVG.
 */
#include <stdio.h>

#include "graph_file.h"

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double bucket_waste(const mstar_traffic_bucket *bucket)
{
    return mstar_traffic_waste(bucket, 1);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void put_rules(cli_output *output, const cli_graph_plan *plan)
{
    cli_put_format(output, "expected waste  %.2f %%  with %lld buckets\n", 100 * plan->waste,
                   (long long)plan->num_buckets);
    cli_put_format(output, "powers of two   %.2f %%  with %lld\n", 100 * plan->powers.waste,
                   (long long)plan->powers.num_buckets);
    cli_put_format(output, "quarter steps   %.2f %%  with %lld\n", 100 * plan->quarters.waste,
                   (long long)plan->quarters.num_buckets);
    if (plan->memory_bytes >= 0)
        cli_put_format(output, "memory          %lld bytes\n", (long long)plan->memory_bytes);
}

void cli_graph_plan_put_text(cli_output *output, const cli_graph_plan *plan)
{
    enum { WIDTH = 32 };
    cli_put_format(output, "%lld lengths in %lld steps, %lld tokens\n",
                   (long long)plan->num_lengths, (long long)plan->num_steps,
                   (long long)plan->num_tokens);
    put_rules(output, plan);
    int64_t most = 1;
    for (int64_t i = 0; i < plan->num_buckets; i++)
        most = plan->buckets[i].steps > most ? plan->buckets[i].steps : most;
    cli_put_format(output, "\n%8s %6s %10s %8s\n", "tokens", "bs", "steps", "waste");
    for (int64_t i = 0; i < plan->num_buckets; i++) {
        const mstar_traffic_bucket *bucket = &plan->buckets[i];
        cli_put_format(output, "%8lld %6lld %10lld %6.2f %%  ", (long long)bucket->num_tokens,
                       (long long)bucket->bs, (long long)bucket->steps, 100 * bucket_waste(bucket));
        for (int64_t j = 0; j < (bucket->steps * WIDTH + most - 1) / most; j++)
            cli_put(output, "#", 1);
        cli_put(output, "\n", 1);
    }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* The picture's places, in its own units. */
enum {
    PAGE_WIDTH = 900,
    PAGE_HEIGHT = 480,
    LEFT = 64,
    RIGHT = 876,
    STEPS_TOP = 76,
    STEPS_BOTTOM = 276,
    WASTE_TOP = 326,
    WASTE_BOTTOM = 416,
    NUM_BINS = 203 /* bars of 4 units */
};

static double x_of(double tokens, double most)
{
    return LEFT + (RIGHT - LEFT) * share(tokens, most);
}

static void put_label(cli_output *output, double x, double y, const char *anchor, const char *text)
{
    cli_put_format(output, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                   anchor, text);
}

/* Round numbers, about six of them. */
static int64_t tick_step(int64_t most)
{
    int64_t step = 1;
    while (most / step > 6) {
        int64_t lead = step;
        while (lead >= 10)
            lead /= 10;
        step = lead == 2 ? step / 2 * 5 : step * 2; /* 1 2 5 10 20 50 */
    }
    return step;
}

static void put_axis(cli_output *output, double y, int64_t most)
{
    char text[32];
    cli_put_format(output, "<path d=\"M%d %.1fH%d\" class=\"axis\"/>\n", LEFT, y, RIGHT);
    int64_t step = tick_step(most);
    for (int64_t at = 0; at <= most; at += step) {
        (void)snprintf(text, sizeof text, "%lld", (long long)at);
        put_label(output, x_of((double)at, (double)most), y + 15, "middle", text);
    }
}

static void put_histogram(cli_output *output, const cli_graph_plan *plan, double most)
{
    double bins[NUM_BINS] = {0}, highest = 0;
    for (int64_t i = 0; i < plan->num_levels; i++) {
        double place = share((double)plan->levels[i].num_tokens, most) * NUM_BINS;
        int bin = place >= NUM_BINS ? NUM_BINS - 1 : (int)place;
        bins[bin] += (double)plan->levels[i].count;
        highest = bins[bin] > highest ? bins[bin] : highest;
    }
    double width = (double)(RIGHT - LEFT) / NUM_BINS;
    cli_put_text(output, "<g class=\"steps\">\n");
    for (int i = 0; i < NUM_BINS; i++) {
        double height = (STEPS_BOTTOM - STEPS_TOP) * share(bins[i], highest);
        if (height > 0)
            cli_put_format(output, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                           LEFT + width * i, STEPS_BOTTOM - height, width, height);
    }
    cli_put_text(output, "</g>\n");
}

static void put_buckets(cli_output *output, const cli_graph_plan *plan, double most)
{
    double highest = 0, before = LEFT;
    char text[96];
    for (int64_t i = 0; i < plan->num_buckets; i++) {
        double waste = bucket_waste(&plan->buckets[i]);
        highest = waste > highest ? waste : highest;
    }
    for (int64_t i = 0; i < plan->num_buckets; i++) {
        const mstar_traffic_bucket *bucket = &plan->buckets[i];
        double x = x_of((double)bucket->num_tokens, most), waste = bucket_waste(bucket);
        double height = (WASTE_BOTTOM - WASTE_TOP) * share(waste, highest);
        cli_put_format(output, "<path d=\"M%.1f %dV%d\" class=\"bucket\"/>\n", x, STEPS_TOP - 8,
                       STEPS_BOTTOM);
        cli_put_format(output,
                       "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                       "class=\"waste\"><title>%lld tokens: %lld steps, %.2f %% "
                       "padding</title></rect>\n",
                       before, WASTE_BOTTOM - height, x - before, height,
                       (long long)bucket->num_tokens, (long long)bucket->steps, 100 * waste);
        before = x;
    }
    (void)snprintf(text, sizeof text, "%.1f %%", 100 * highest);
    put_label(output, LEFT - 6, WASTE_TOP + 5, "end", text);
    put_label(output, LEFT - 6, WASTE_BOTTOM + 4, "end", "0");
}

void cli_graph_plan_put_svg(cli_output *output, const cli_graph_plan *plan)
{
    int64_t most = plan->buckets[plan->num_buckets - 1].num_tokens;
    char text[160];
    cli_put_format(output,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                   "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
                   "<style>.axis{stroke:#333;fill:none}.steps{fill:#8fb3d9}"
                   ".bucket{stroke:#b3432b;stroke-width:1}.waste{fill:#e0a080;stroke:#b3432b;"
                   "stroke-width:.5}</style>\n"
                   "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                   PAGE_WIDTH, PAGE_HEIGHT, PAGE_WIDTH, PAGE_HEIGHT);
    (void)snprintf(text, sizeof text, "%lld buckets: %.2f %% of the rows are padding",
                   (long long)plan->num_buckets, 100 * plan->waste);
    cli_put_format(output, "<text x=\"%d\" y=\"26\" font-size=\"16\">%s</text>\n", LEFT, text);
    (void)snprintf(text, sizeof text,
                   "powers of two: %.2f %% with %lld; quarter steps: %.2f %% with %lld; %lld steps",
                   100 * plan->powers.waste, (long long)plan->powers.num_buckets,
                   100 * plan->quarters.waste, (long long)plan->quarters.num_buckets,
                   (long long)plan->num_steps);
    put_label(output, LEFT, 46, "start", text);
    put_histogram(output, plan, (double)most);
    put_axis(output, STEPS_BOTTOM, most);
    put_label(output, LEFT - 6, STEPS_TOP + 5, "end", "steps");
    put_label(output, LEFT, WASTE_TOP - 12, "start", "padding of each bucket");
    put_buckets(output, plan, (double)most);
    put_axis(output, WASTE_BOTTOM, most);
    put_label(output, (LEFT + RIGHT) / 2.0, PAGE_HEIGHT - 22, "middle", "tokens of a step");
    cli_put_text(output, "</svg>\n");
}
