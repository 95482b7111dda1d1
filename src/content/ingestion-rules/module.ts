import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { ruleCloning } from './clone.ts'
import { ruleErrors } from './errors.ts'
import { ingestionRuleKind } from './model.ts'
import { ingestionRuleOperations } from './operations.ts'

export default module('ingestion rules', {
  tags: { 'Ingestion rules': 'Rules for converting files to text with tools or agents.' },
  errors: ruleErrors,
  kinds: [ingestionRuleKind],
  resourceTypes: [
    resourceType(ingestionRuleKind, {
      defaults: { enabled: true, native_extraction: 'first', file_delivery: 'base64' },
    }),
  ],
  operations: ingestionRuleOperations,
  extensions: [cloneables.with(ruleCloning)],
})
