import { randomBytes, type ScryptOptions, scrypt, timingSafeEqual } from 'node:crypto'
import { serviceNotReady } from '../../core/api/errors.ts'
import { FairSemaphore } from '../../core/process/fair-semaphore.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { networkOf } from '../networks.ts'

/** Parameters of scrypt for new hashes: 32 MiB and some 100 ms. Only tests write them. */
export const COST = { ln: 15, r: 8, p: 1 }
const SALT_BYTES = 16
const KEY_BYTES = 32

const PHC = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/

const phcOf = (salt: Buffer, key: Buffer): string =>
  `$scrypt$ln=${COST.ln},r=${COST.r},p=${COST.p}$${base64(salt)}$${base64(key)}`

const base64 = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '')

/**
 * Hashes that run at once in a process. Its four threads (UV_THREADPOOL_SIZE) also verify tokens, resolve names and read
 * files: with all of them hashing, a burst of sign-ins would hold up every other request.
 */
const SIGN_INS_AT_ONCE = 2
/** Those of users who are signed in have a thread of their own: no flood of sign-ins is before them. */
const SIGNED_IN_AT_ONCE = 1
/** Hashes that wait; at 60 ms each, the last sign-in of 100 waits for 3 s. */
const MAX_WAITING = 100

const queue = {
  most: MAX_WAITING,
  full: () =>
    serviceNotReady(
      { passwords: 'busy' },
      { message: 'Too many passwords are waiting to be checked', retryAfterSeconds: 5 },
    ),
}

const threads = processSingleton(() => ({
  signIns: new FairSemaphore(SIGN_INS_AT_ONCE, queue),
  signedIn: new FairSemaphore(SIGNED_IN_AT_ONCE, queue),
}))

/** Whose request hashes a password: a user who is signed in, or an address. `closed` ends its wait. */
export type HashRequester = ({ user: string } | { ip: string | null }) & { closed?: AbortSignal }

async function derive(
  services: Pick<Services, 'state'>,
  password: string,
  { salt, cost, length }: { salt: Buffer; cost: typeof COST; length: number },
  sender: HashRequester,
): Promise<Buffer> {
  const options: ScryptOptions = { N: 2 ** cost.ln, r: cost.r, p: cost.p, maxmem: 256 * 2 ** cost.ln * cost.r }
  const { signIns, signedIn } = threads(services)
  const [turns, key] = 'user' in sender ? [signedIn, sender.user] : [signIns, networkOf(sender.ip)]
  return turns.use(
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
 * Hashes a password with scrypt and a fresh salt; returns a PHC string that names its parameters. Raises
 * SERVICE_NOT_READY where too many wait.
 */
export async function hashPassword(
  services: Pick<Services, 'state'>,
  password: string,
  sender: HashRequester,
): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const key = await derive(services, password, { salt, cost: COST, length: KEY_BYTES }, sender)
  return phcOf(salt, key)
}

// Compared with when there is no user, so that an unknown name costs what a wrong password costs.
const nobody = () => phcOf(Buffer.alloc(SALT_BYTES), Buffer.alloc(KEY_BYTES))

/**
 * Compares a password with a PHC string, in the time the string's parameters cost; null stands for a user that does
 * not exist and never matches. `outdated` asks for a new hash with today's parameters. Raises SERVICE_NOT_READY where too
 * many wait.
 */
export async function verifyPassword(
  services: Pick<Services, 'state'>,
  password: string,
  phc: string | null,
  sender: HashRequester,
): Promise<{ matches: boolean; outdated: boolean }> {
  const parts = PHC.exec(phc ?? nobody())
  if (!parts) return { matches: false, outdated: false }
  const cost = { ln: Number(parts[1]), r: Number(parts[2]), p: Number(parts[3]) }
  const expected = Buffer.from(parts[5], 'base64')
  const salt = Buffer.from(parts[4], 'base64')
  const key = await derive(services, password, { salt, cost, length: expected.length }, sender)
  const matches = timingSafeEqual(key, expected) && phc !== null
  return { matches, outdated: cost.ln < COST.ln || cost.r < COST.r || cost.p < COST.p }
}
