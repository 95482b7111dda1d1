-- Tools of servers that speak the Model Context Protocol.

alter table tools
  -- json, as the other definitions: what a caller wrote comes back with its keys in their order.
  add column mcp json,
  add column denied_actions text[];
