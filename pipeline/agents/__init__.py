"""Coding agents drive the loop through the Model Context Protocol: `kgen mcp`. Nothing here has any authority.

    desk     what the tools do, without the protocol
    server   the protocol on stdio; the only module that needs the `mcp` package
    labour   the process beside the server that takes runs through the gates; worker: what runs in it

Agents without MCP use the mailbox (kgen.proposers.mailbox).
"""
