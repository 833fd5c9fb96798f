"""The engine's parts: graph capture configs and the resources that attention runs on."""
