import { createInterface } from 'node:readline/promises'
import { Writable } from 'node:stream'
import { AppError } from '../core/api/errors.ts'
import { bootstrapAdmin } from '../identity/users/bootstrap.ts'
import { withServices } from './environment.ts'
import { CommandError, describeError, print, printJson } from './output.ts'

type Options = { data: string; username?: string; password?: string; json?: boolean }

/** `muster bootstrap`: makes the first admin. Raises CommandError when a user exists or a value does not do. */
export async function bootstrapCommand({ data, json, ...given }: Options): Promise<void> {
  const username = given.username || (await ask('username', false))
  const password = given.password || process.env.ADMIN_PASSWORD || (await ask('password', true))
  await withServices(data, async services => {
    try {
      const { id } = await bootstrapAdmin(services, { username, password })
      if (json) printJson({ id, username, role: 'admin' })
      else print(`made the admin ${username}, ${id}`)
    } catch (error) {
      if (!(error instanceof AppError)) throw error
      if (error.code === 'BOOTSTRAP_ALREADY_COMPLETED')
        throw new CommandError(
          `${error.code}: a user exists already, so the first admin cannot be made again`,
          'An admin makes further users with POST /api/v1/users.',
        )
      throw new CommandError(describeError(error))
    }
  })
}

/** Asks on the terminal; what is typed for `hidden` is not shown. Raises CommandError without a terminal. */
async function ask(name: string, hidden: boolean): Promise<string> {
  if (!process.stdin.isTTY)
    throw new CommandError(`no ${name} given`, `Pass --${name}, or set ADMIN_${name.toUpperCase()}.`)
  process.stderr.write(`${name}: `)
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() })
  const line = createInterface({ input: process.stdin, output: hidden ? silent : process.stderr, terminal: true })
  // A raw terminal hands Ctrl-C to the prompt.
  line.once('SIGINT', () => process.exit(130))
  try {
    return await line.question('')
  } finally {
    line.close()
    if (hidden) process.stderr.write('\n')
  }
}
