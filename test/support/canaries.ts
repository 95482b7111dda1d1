import { testEnvironment } from './environment.ts'
import { ADMIN } from './postgres.ts'

/** What tests put in prompts, arguments, results, secrets and names of files, and what no exported span may contain. */
export const CANARY = 'CANARY'

/** A canary in a field of content. */
export const canary = (field: string): string => `${CANARY}-${field}`

const { JWT_SECRET, SECRETS_ENCRYPTION_KEY } = testEnvironment('')

/** All canaries: also the start of every scripted prompt, and the credentials of tests. */
export const CANARIES: readonly string[] = [
  CANARY,
  '@double',
  JWT_SECRET,
  SECRETS_ENCRYPTION_KEY,
  ADMIN.password,
  'a fine password',
]
