import { deploymentAwsKeys } from '#core/net/aws.ts'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import { ANSWER_BYTES, fieldOf, type SecretStore, storeFailure } from './store.ts'

const awsFetch = fetchWithLimit(ANSWER_BYTES)

/** AWS Secrets Manager with the deployment's credentials. */
export const awsSecretStore: SecretStore = {
  configured: ({ SECRETS_AWS_REGION }) => SECRETS_AWS_REGION !== null,
  async read({ config }, name, field, signal) {
    const { SECRETS_AWS_REGION: region, SECRETS_AWS_ENDPOINT: endpoint } = config
    if (!region) return storeFailure('store_not_configured', 'no region')
    const keys = await deploymentAwsKeys()
    if (!keys) return storeFailure('store_not_configured', 'no AWS keys')
    const { AwsV4Signer } = await import('aws4fetch')
    const signed = await new AwsV4Signer({
      ...keys,
      method: 'POST',
      url: endpoint ?? `https://secretsmanager.${region}.amazonaws.com/`,
      region,
      service: 'secretsmanager',
      headers: { 'Content-Type': 'application/x-amz-json-1.1', 'X-Amz-Target': 'secretsmanager.GetSecretValue' },
      body: JSON.stringify({ SecretId: name }),
    }).sign()
    const { url, method, headers, body } = signed
    const response = await awsFetch(url, { method, headers, body, redirect: 'error', signal })
    const text = await response.text()
    if (response.status !== 200) return failureOfResponse(response.status, text)
    const { SecretString: value } = JSON.parse(text) as { SecretString?: unknown }
    if (typeof value !== 'string') return storeFailure('unusable_value', 'the value is binary')
    return field === null ? { ok: true, value } : fieldOf(parseJson(value), field)
  },
}

function failureOfResponse(status: number, text: string) {
  const type = (parseJson(text) as { __type?: unknown } | null)?.__type
  const name = typeof type === 'string' ? type.replace(/^.*#/, '') : ''
  const detail = `${status} ${name}`
  if (name === 'ResourceNotFoundException') return storeFailure('not_in_store', detail)
  // The secret is marked for deletion.
  if (name === 'InvalidRequestException') return storeFailure('not_in_store', detail)
  if (name === 'DecryptionFailure' || status === 401 || status === 403) return storeFailure('store_denied', detail)
  const deniedErrors = [
    'AccessDeniedException',
    'UnrecognizedClientException',
    'InvalidSignatureException',
    'ExpiredTokenException',
  ]
  return storeFailure(deniedErrors.includes(name) ? 'store_denied' : 'store_unreachable', detail)
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}
