import { z } from 'zod'
import { versioned } from '#core/resources/versioned.ts'
import { boundIds } from './bindings.ts'
import { agentKind, configFields, readConfig } from './model.ts'

export const agentVersions = versioned({
  kind: agentKind,
  prefix: 'agver',
  fields: configFields,
  columns: {
    eval_run_id: z.string().nullable().describe('Eval run that allowed the canary to become this version'),
  },
  read: readConfig,
  derived: ({ tool_bindings, context_policy }) => ({
    ...(tool_bindings === undefined ? {} : boundIds(tool_bindings)),
    ...(context_policy === undefined ? {} : { summary_model_route_id: context_policy?.summary_model_route_id ?? null }),
  }),
})
