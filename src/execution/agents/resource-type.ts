import type { Problem } from '../../core/api/errors.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { agentKind, type ToolBinding } from './model.ts'

/** Agents of templates reference their tools, which are separate resources. */
export const agentType = resourceType(agentKind, {
  defaults: {
    single_session_per_actor: false,
    auto_title: false,
    end_user_activity: 'none',
    client_instructions: 'block',
    accept_client_tools: false,
    shared_state: false,
  },
  check: ({ tool_bindings }) =>
    ((tool_bindings ?? []) as ToolBinding[]).flatMap(({ tool }, index): Problem[] =>
      tool === undefined
        ? []
        : [
            {
              code: 'INVALID_VALUE',
              path: `tool_bindings[${index}].tool`,
              message: 'must be a separate tool of the template, referenced by tool_id',
            },
          ],
    ),
})
