import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import { type MediaSettings, mediaRules } from './media.ts'
import type { AgentRow } from './model.ts'

/** The face of an agent: what the end users of its chats see. */
const agentView = endUserView(
  {
    id: true,
    name: true,
    description: true,
    avatar_file_id: true,
    greeting: true,
    suggestions: true,
    // What its messages may contain.
    media: (media: MediaSettings | null) => {
      if (media === null) return null
      const { accept, max_parts_per_turn } = mediaRules(media)
      return { accept, max_parts_per_turn }
    },
  },
  [
    'project_id',
    'instructions',
    'ai_provider_id',
    'model_route_id',
    'model',
    'tool_bindings',
    'active_tool_ids',
    'tool_choice',
    'stop_conditions',
    'step_rules',
    'knowledge_config',
    'boundary_policy',
    'guardrail_ids',
    'on_approval_expiry',
    'max_steps',
    'temperature',
    'max_output_tokens',
    'top_p',
    'seed',
    'provider_options',
    'vendor_tools',
    'output_schema',
    'prompt_caching',
    'max_context_messages',
    'single_session_per_actor',
    'trace_content_mode',
    'end_user_activity',
    'context_policy',
    'auto_title',
    'client_instructions',
    'accept_client_tools',
    'request_settings',
    'shared_state',
    'a2a',
    'version',
    'active_release',
    'created_at',
    'updated_at',
  ],
)

export const agentAccess: EndUserAccess<AgentRow> = {
  scope: 'chat',
  owns: ({ id }, { agent_ids }) => agent_ids.includes(id),
  view: agentView,
}
