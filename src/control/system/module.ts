import { module } from '#core/modules/module.ts'
import { systemOperations } from './operations.ts'

export default module('system', {
  tags: { System: 'Health, queues and settings of the deployment.' },
  operations: systemOperations,
})
