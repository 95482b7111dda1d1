export type AwsKeys = { accessKeyId: string; secretAccessKey: string; sessionToken?: string }

const SOURCE_TIMEOUT_MS = 2000

let provider: (() => Promise<AwsKeys & { expiration?: Date }>) | undefined

/**
 * Returns the AWS keys of the deployment from the first source of the SDK's chain that has any: environment, shared
 * files, web identity token, container endpoint, instance metadata. Null without any. Keys are cached until shortly
 * before they expire; keys without expiry are read each time.
 */
export async function deploymentAwsKeys(): Promise<AwsKeys | null> {
  // Imported at the first use: it takes 12 MB.
  const { defaultProvider } = await import('@aws-sdk/credential-provider-node')
  provider ??= defaultProvider({
    timeout: SOURCE_TIMEOUT_MS,
    clientConfig: {
      region: process.env.AWS_REGION ?? 'us-east-1',
      requestHandler: { connectionTimeout: SOURCE_TIMEOUT_MS, requestTimeout: SOURCE_TIMEOUT_MS },
    },
  })
  try {
    const { accessKeyId, secretAccessKey, sessionToken, expiration } = await provider()
    if (!expiration) provider = undefined
    return { accessKeyId, secretAccessKey, ...(sessionToken && { sessionToken }) }
  } catch {
    return null
  }
}

/** Returns the headers of a GET signed for the service `bedrock` with AWS Signature Version 4. */
export async function signedGet(url: string, keys: AwsKeys, region: string): Promise<Record<string, string>> {
  const { AwsV4Signer } = await import('aws4fetch')
  const { headers } = await new AwsV4Signer({ ...keys, url, region, service: 'bedrock' }).sign()
  return Object.fromEntries(headers)
}
