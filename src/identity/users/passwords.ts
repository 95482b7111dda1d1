import { randomBytes, type ScryptOptions, scrypt, timingSafeEqual } from 'node:crypto'

/** Parameters of scrypt for new hashes: 32 MiB and some 100 ms. Only tests write them. */
export const COST = { ln: 15, r: 8, p: 1 }
const SALT_BYTES = 16
const KEY_BYTES = 32

const PHC = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/

const base64 = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '')

/**
 * Hashes that run at once in a process. Its four threads (UV_THREADPOOL_SIZE) also verify tokens, resolve names and read
 * files: with all of them hashing, a burst of sign-ins would hold up every other request.
 */
const AT_ONCE = 2
let running = 0
const waiting: (() => void)[] = []

async function derive(password: string, salt: Buffer, cost: typeof COST, length: number): Promise<Buffer> {
  const options: ScryptOptions = { N: 2 ** cost.ln, r: cost.r, p: cost.p, maxmem: 256 * 2 ** cost.ln * cost.r }
  if (running < AT_ONCE) running++
  else await new Promise<void>(resolve => waiting.push(resolve))
  try {
    return await new Promise((resolve, reject) =>
      scrypt(password, salt, length, options, (error, key) => (error ? reject(error) : resolve(key))),
    )
  } finally {
    const next = waiting.shift()
    if (next) next()
    else running--
  }
}

/** Hashes a password with scrypt and a fresh salt; returns a PHC string that names its parameters. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const key = await derive(password, salt, COST, KEY_BYTES)
  return `$scrypt$ln=${COST.ln},r=${COST.r},p=${COST.p}$${base64(salt)}$${base64(key)}`
}

// Compared with when there is no user, so that an unknown name costs what a wrong password costs.
const nobody = () =>
  `$scrypt$ln=${COST.ln},r=${COST.r},p=${COST.p}$${base64(Buffer.alloc(SALT_BYTES))}$${base64(Buffer.alloc(KEY_BYTES))}`

/**
 * Compares a password with a PHC string, in the time the string's parameters cost; null stands for a user that does
 * not exist and never matches. `outdated` asks for a new hash with today's parameters.
 */
export async function verifyPassword(
  password: string,
  phc: string | null,
): Promise<{ matches: boolean; outdated: boolean }> {
  const parts = PHC.exec(phc ?? nobody())
  if (!parts) return { matches: false, outdated: false }
  const cost = { ln: Number(parts[1]), r: Number(parts[2]), p: Number(parts[3]) }
  const expected = Buffer.from(parts[5], 'base64')
  const key = await derive(password, Buffer.from(parts[4], 'base64'), cost, expected.length)
  const matches = timingSafeEqual(key, expected) && phc !== null
  return { matches, outdated: cost.ln < COST.ln || cost.r < COST.r || cost.p < COST.p }
}
