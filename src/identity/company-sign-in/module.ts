import type { Services } from '#core/base/services.ts'
import { module } from '#core/modules/module.ts'
import { findPolicies } from '../policies/store.ts'
import { codeSignIn } from '../users/sign-in.ts'
import { identityOperations } from './operations.ts'
import { isEnabled } from './provider.ts'
import { redeemCode } from './redeem.ts'

/** Logs warnings about incomplete company sign-in settings. */
async function checkSettings({ config, log, pool }: Services): Promise<void> {
  const { OIDC_ISSUER, OIDC_CLIENT_ID, OIDC_DEFAULT_POLICY_IDS } = config
  if (!isEnabled(config)) {
    if (OIDC_ISSUER || OIDC_CLIENT_ID)
      log.warn('company sign-in disabled, OIDC_ISSUER and OIDC_CLIENT_ID must both be set')
    return
  }
  const known = await findPolicies(pool, OIDC_DEFAULT_POLICY_IDS)
  const unknown = OIDC_DEFAULT_POLICY_IDS.filter(id => !known.includes(id))
  if (unknown.length > 0) log.warn({ policy_ids: unknown }, 'OIDC_DEFAULT_POLICY_IDS contains unknown policies')
}

export default module('company-sign-in', {
  extensions: [codeSignIn.with(redeemCode)],
  operations: identityOperations.map(operation => ({ ...operation, mcp: false })),
  start: async (services, role) => (role === 'web' ? checkSettings(services) : undefined),
})
