import { readFile } from 'node:fs/promises'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import { ANSWER_BYTES, fieldOf, type SecretStore, storeFailure } from './store.ts'

const DEFAULT_FIELD = 'value'

const vaultFetch = fetchWithLimit(ANSWER_BYTES)

/** HashiCorp Vault and compatible stores, with version 2 of the key-value engine. */
export const vaultStore: SecretStore = {
  configured: ({ SECRETS_VAULT_ADDR }) => SECRETS_VAULT_ADDR !== null,
  async read({ config }, name, field, signal) {
    const { SECRETS_VAULT_ADDR, SECRETS_VAULT_MOUNT, SECRETS_VAULT_NAMESPACE } = config
    const token = await tokenOf(config)
    if (!SECRETS_VAULT_ADDR || !token) return storeFailure('store_not_configured', 'no address or no token')
    const path = `${SECRETS_VAULT_MOUNT}/data/${name}`.split('/').map(encodeURIComponent).join('/')
    const response = await vaultFetch(`${SECRETS_VAULT_ADDR.replace(/(?<!\/)\/+$/, '')}/v1/${path}`, {
      headers: {
        'X-Vault-Token': token,
        'X-Vault-Request': 'true',
        ...(SECRETS_VAULT_NAMESPACE ? { 'X-Vault-Namespace': SECRETS_VAULT_NAMESPACE } : {}),
      },
      // A redirect would send the token to another address.
      redirect: 'error',
      signal,
    })
    const text = await response.text()
    if (response.status === 404) return storeFailure('not_in_store')
    if (response.status === 401 || response.status === 403) return storeFailure('store_denied', text)
    if (response.status !== 200) return storeFailure('store_unreachable', `${response.status} ${text}`)
    const answer = JSON.parse(text) as { data?: { data?: unknown } }
    return fieldOf(answer.data?.data, field ?? DEFAULT_FIELD)
  },
}

/** Returns the configured token or the current content of the token file, which a Vault agent renews. */
async function tokenOf(config: { SECRETS_VAULT_TOKEN: string | null; SECRETS_VAULT_TOKEN_FILE: string | null }) {
  const { SECRETS_VAULT_TOKEN, SECRETS_VAULT_TOKEN_FILE } = config
  if (SECRETS_VAULT_TOKEN_FILE === null) return SECRETS_VAULT_TOKEN
  return (await readFile(SECRETS_VAULT_TOKEN_FILE, 'utf8')).trim()
}
