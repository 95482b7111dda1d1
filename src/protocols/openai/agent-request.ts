import type { AgentRow } from '#execution/agents/model.ts'
import type { ClientRequest, TurnData } from '#execution/generations/model.ts'
import { type ClientChatRequest, schemaOf } from './client-request.ts'

export type TurnSettings = { overrides: TurnData['overrides']; system_extra: string[]; ignored: string[] }

const isChoice = (field: string): boolean => field === 'tool_choice' || field === 'function_call'

/** Returns what a request adds to a turn within the settings of the agent, and the fields that have no effect. */
export function turnSettingsOf(agent: AgentRow, request: ClientChatRequest, isEndUser: boolean): TurnSettings {
  const ignored: string[] = []
  const client: ClientRequest = isEndUser ? {} : { reasoning: true }
  const system_extra: string[] = []
  const overrides: TurnData['overrides'] = { client }
  if (request.instructions !== null) {
    const use = agent.client_instructions
    if (use === 'system' && !isEndUser) system_extra.push(request.instructions)
    else if (use !== 'ignore') client.instructions = request.instructions
  }
  if (!agent.accept_client_tools) ignored.push(...request.tool_fields)
  else if (request.tools.length > 0) {
    const choice = request.tool_choice
    const allowed = typeof choice === 'object' && choice?.type === 'allowed_tools' ? choice : null
    // The tools of the agent are not the client's to choose from.
    client.tools = allowed ? request.tools.filter(({ name }) => allowed.tool_names.includes(name)) : request.tools
    // A forced choice in every step would never end the turn.
    if (choice !== null && !isEndUser)
      overrides.step_rules = [{ step: 1, tool_choice: allowed ? (allowed.mode ?? 'auto') : choice }]
    if (isEndUser) ignored.push(...request.tool_fields.filter(isChoice))
  }
  for (const { tool, field } of request.hosted) {
    // The tools of the agent are not the client's to add; it may narrow searches to domains.
    if (!agent.vendor_tools?.some(({ type }) => type === tool.type)) ignored.push(field)
    else if (tool.type === 'web_search') {
      if (tool.allowed_domains) client.search_domains = tool.allowed_domains
      if (tool.blocked_domains) ignored.push('tools.blocked_domains')
    }
  }
  const allowed = new Set<string>(isEndUser ? [] : (agent.request_settings ?? []))
  ignored.push(...Object.keys(request.settings).filter(name => !allowed.has(name)))
  client.settings = Object.fromEntries(Object.entries(request.settings).filter(([name]) => allowed.has(name)))
  if (request.store === false) client.store = false
  if (request.max_output_tokens !== null) client.max_output_tokens = request.max_output_tokens
  const schema = schemaOf(request.format)
  if (schema !== null) {
    if (agent.output_schema === null) overrides.output_schema = schema
    else ignored.push('response_format')
  }
  return { overrides, system_extra, ignored }
}
