import { randomBytes, type ScryptOptions, scrypt, timingSafeEqual } from 'node:crypto'
import { serviceNotReady } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { sharedSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { networkOf } from '../sign-in/networks.ts'

/** Parameters of scrypt for new hashes: 32 MiB and about 100 ms. Changed only by tests. */
export const COST = { ln: 15, r: 8, p: 1 }
const SALT_BYTES = 16
const KEY_BYTES = 32

const PHC = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/

const phcOf = (salt: Buffer, key: Buffer): string =>
  `$scrypt$ln=${COST.ln},r=${COST.r},p=${COST.p}$${base64(salt)}$${base64(key)}`

const base64 = (bytes: Buffer): string => bytes.toString('base64').replace(/(?<!=)=+$/, '')

/**
 * Concurrent sign-in hashes per process. Its four threads (UV_THREADPOOL_SIZE) also verify tokens, resolve names and
 * read files: if all of them hashed, a burst of sign-ins would delay every other request.
 */
const CONCURRENT_SIGN_INS = 2
/** Concurrent hashes for signed-in users, who have a separate slot, so that a flood of sign-ins does not delay them. */
const CONCURRENT_SIGNED_IN = 1
/** Waiting hashes; at 60 ms each, the last of 100 sign-ins waits 3 s. */
const MAX_WAITING = 100

const queue = {
  most: MAX_WAITING,
  full: () =>
    serviceNotReady({ passwords: 'busy' }, { message: 'Too many password checks are waiting', retryAfterSeconds: 5 }),
}

const semaphores = sharedSingleton(() => ({
  signIns: new FairSemaphore(CONCURRENT_SIGN_INS, queue),
  signedIn: new FairSemaphore(CONCURRENT_SIGNED_IN, queue),
}))

/** Sender of a request that hashes a password: a signed-in user or an address. `closed` ends its wait. */
export type HashRequester = ({ user: string } | { ip: string | null }) & { closed?: AbortSignal }

async function deriveKey(
  services: Pick<Services, 'state'>,
  password: string,
  { salt, cost, length }: { salt: Buffer; cost: typeof COST; length: number },
  sender: HashRequester,
): Promise<Buffer> {
  const options: ScryptOptions = { N: 2 ** cost.ln, r: cost.r, p: cost.p, maxmem: 256 * 2 ** cost.ln * cost.r }
  const { signIns, signedIn } = semaphores(services)
  const [semaphore, key] = 'user' in sender ? [signedIn, sender.user] : [signIns, networkOf(sender.ip)]
  return semaphore.use(
    key,
    1,
    sender.closed,
    () =>
      new Promise((resolve, reject) =>
        scrypt(password, salt, length, options, (error, key) => (error ? reject(error) : resolve(key))),
      ),
  )
}

/**
 * Hashes a password with scrypt and a new salt into a PHC string.
 * @throws SERVICE_NOT_READY if too many hashes wait
 */
export async function hashPassword(
  services: Pick<Services, 'state'>,
  password: string,
  sender: HashRequester,
): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const key = await deriveKey(services, password, { salt, cost: COST, length: KEY_BYTES }, sender)
  return phcOf(salt, key)
}

// Compared if there is no user, so that an unknown name costs as much as a wrong password.
const dummyHash = () => phcOf(Buffer.alloc(SALT_BYTES), Buffer.alloc(KEY_BYTES))

/**
 * Compares a password with a PHC string, in the time that the string's parameters require; null represents an unknown
 * user and never matches. `outdated` means that the password needs a new hash with the current parameters.
 * @throws SERVICE_NOT_READY if too many hashes wait
 */
export async function verifyPassword(
  services: Pick<Services, 'state'>,
  password: string,
  phc: string | null,
  sender: HashRequester,
): Promise<{ matches: boolean; outdated: boolean }> {
  const parts = PHC.exec(phc ?? dummyHash())
  if (!parts) return { matches: false, outdated: false }
  const cost = { ln: Number(parts[1]), r: Number(parts[2]), p: Number(parts[3]) }
  const expected = Buffer.from(parts[5], 'base64')
  const salt = Buffer.from(parts[4], 'base64')
  const key = await deriveKey(services, password, { salt, cost, length: expected.length }, sender)
  const matches = timingSafeEqual(key, expected) && phc !== null
  return { matches, outdated: cost.ln < COST.ln || cost.r < COST.r || cost.p < COST.p }
}
