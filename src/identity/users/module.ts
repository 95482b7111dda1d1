import { authentication } from '#core/invoke/hooks.ts'
import { module } from '#core/modules/module.ts'
import { repairCopies } from '#core/services/copies.ts'
import { authenticate } from '../principals/principals.ts'
import { bootstrapFromSettings } from './bootstrap.ts'
import { userErrors } from './errors.ts'
import { flushFailedSignIns } from './failed-sign-in-audit.ts'
import { userKind } from './model.ts'
import { userOperations } from './operations.ts'
import { pruneFailures } from './sign-in.ts'

export default module('users', {
  tags: { Users: 'People and services that sign in, and their tokens.' },
  errors: userErrors,
  kinds: [userKind],
  extensions: [authentication.with(authenticate)],
  operations: userOperations,
  sweeps: [
    { name: 'refused attempts', when: '43 * * * *', run: flushFailedSignIns },
    { name: 'copies in cells', when: '4-59/5 * * * *', run: repairCopies },
    { name: 'login failures', when: '13 3 * * *', run: pruneFailures },
  ],
  start: async (services, role) =>
    role === 'web' && !services.cell?.number ? bootstrapFromSettings(services) : undefined,
})
