import { definitionCloning } from '../orchestrations/clone.ts'
import { playbookFields } from './definition.ts'
import { playbookKind } from './model.ts'
import { insertPlaybook } from './versions.ts'

export const playbookCloning = definitionCloning({
  name: 'playbooks',
  kind: playbookKind,
  fields: playbookFields,
  naming: 'steps',
  insert: insertPlaybook,
})
