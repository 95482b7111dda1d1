import type { AgentRow } from '../agents/model.ts'

/** What an agent may call, by the ids of tools or the names of definitions of its own; nothing for one that only answers. */
export function toolsOfAgent({ tool_bindings, active_tool_ids, knowledge_config }: AgentRow): string[] {
  const isActive = (id: string): boolean => !active_tool_ids?.length || active_tool_ids.includes(id)
  const writing = knowledge_config?.write_memory_store_id == null ? [] : ['write_memory']
  const bound = (tool_bindings ?? []).flatMap(({ tool_id, tool }) => {
    if (tool_id === undefined) return tool ? [tool.name] : []
    return isActive(tool_id) ? [tool_id] : []
  })
  return [...writing, ...bound]
}
