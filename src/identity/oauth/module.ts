import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { sweepLogins } from '../company-sign-in/login.ts'
import { sweepOauthRows } from '../grants/store.ts'
import { checkDraft } from './draft.ts'
import { clientKind, grantKind, sealedOauthValues } from './model.ts'
import { oauthOperations } from './operations.ts'
import { sweepGrantsOfCells } from './project-grants.ts'

export default module('oauth', {
  kinds: [grantKind, clientKind],
  tags: { OAuth: 'User consent for third-party clients, the resulting grants, and the clients.' },
  // Only people may grant access to clients.
  operations: oauthOperations.map(operation => ({ ...operation, mcp: false })),
  sealedColumns: sealedOauthValues,
  start: async ({ config }, role) => (role === 'web' ? checkDraft(config) : undefined),
  sweeps: [
    {
      name: 'identity.sweep',
      when: '37 * * * *',
      run: async (services, stopping) =>
        (await deleteInBatches(limit => sweepOauthRows(services.pool, limit), stopping)) +
        (await sweepGrantsOfCells(services)) +
        (await sweepLogins(services, stopping)),
    },
  ],
})
