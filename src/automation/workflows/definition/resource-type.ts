import { resourceType } from '#core/api/resource-type.ts'
import { workflowKind } from './model.ts'
import { type UncheckedWorkflow, validateWorkflow } from './validate.ts'

export const workflowType = resourceType(workflowKind, {
  check: ({ states, transitions, payload_schema = null }) =>
    states && transitions
      ? validateWorkflow({ states, transitions, payload_schema } as UncheckedWorkflow).problems
      : [],
})
