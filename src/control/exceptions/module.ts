import { module } from '#core/modules/module.ts'
import { lostMessageHooks } from '#core/work/lost-messages.ts'
import { exceptionErrors } from './errors.ts'
import { exceptionsDropped, filingHandler } from './file-exception.ts'
import { reportLostMessage } from './lost-messages.ts'
import { exceptionKind } from './model.ts'
import { exceptionOperations } from './operations.ts'
import { reportExpiring } from './secret-expiry.ts'

export default module('exceptions', {
  tags: { Exceptions: 'Failures and anomalies that require attention.' },
  errors: exceptionErrors,
  kinds: [exceptionKind],
  operations: exceptionOperations,
  handlers: [filingHandler],
  extensions: [lostMessageHooks.with(reportLostMessage)],
  metrics: [exceptionsDropped],
  sweeps: [{ name: 'expiring secrets', when: '11 * * * *', run: reportExpiring }],
})
