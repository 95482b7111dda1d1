import { definitionCloning } from '#automation/orchestrations/definition/clone.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { playbookErrors } from './errors.ts'
import { playbookKind } from './model.ts'
import { playbookOperations } from './operations.ts'
import { playbookType } from './resource-type.ts'
import { insertPlaybook, playbookVersions } from './versions.ts'

export default module('playbooks', {
  tags: { Playbooks: 'Procedures of steps for people and automation, and their executions.' },
  errors: playbookErrors,
  kinds: [playbookKind],
  resourceTypes: [playbookType],
  operations: playbookOperations,
  extensions: [cloneables.with(definitionCloning(playbookVersions, { naming: 'steps', insert: insertPlaybook }))],
})
