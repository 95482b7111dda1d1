import type { AgentRow } from '../agents/model.ts'

/** What an agent may call, by the ids of tools or the names of definitions of its own; nothing for one that only answers. */
export function toolsOfAgent({ tool_bindings, active_tool_ids }: AgentRow): string[] {
  const isActive = (id: string): boolean => !active_tool_ids?.length || active_tool_ids.includes(id)
  return (tool_bindings ?? []).flatMap(({ tool_id, tool }) => {
    if (tool_id === undefined) return tool ? [tool.name] : []
    return isActive(tool_id) ? [tool_id] : []
  })
}
