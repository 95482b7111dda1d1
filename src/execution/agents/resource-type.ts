import { resourceType } from '#core/api/resource-type.ts'
import type { Problem } from '#core/base/errors.ts'
import { providerOptionProblems } from '../providers/options/provider-options.ts'
import { AGENT_DEFAULTS, agentKind, type ToolBinding } from './model.ts'

/** Agents of templates reference their tools, which are separate resources. */
export const agentType = resourceType(agentKind, {
  defaults: AGENT_DEFAULTS,
  later: ['tool_bindings'],
  check: ({ tool_bindings, provider_options }) => [
    ...((tool_bindings ?? []) as ToolBinding[]).flatMap(({ tool }, index): Problem[] =>
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
    ...providerOptionProblems((provider_options ?? {}) as Record<string, unknown>),
  ],
})
