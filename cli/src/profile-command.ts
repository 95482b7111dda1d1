import fs from 'node:fs'
import { commandFile } from '../../client/build/commands.ts'
import { CommandTable, loadCommands } from './commands.ts'
import { Connection, parseUrl } from './connection.ts'
import { EXIT, Failure, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import {
  cacheFile,
  type Profile,
  profileName,
  readCredentials,
  readProfiles,
  saveProfile,
  storeCredential,
  withLock,
  writePrivate,
} from './profiles.ts'
import { note, printLine, visible } from './terminal.ts'
import { describedVersion } from './versions.ts'

const USAGE = `Usage:
  muster profile list                          the profiles
  muster profile get [name]                    settings of a profile
  muster profile set <setting> <value>         url, project, output (table, json, jsonl) or ca_file of the profile
  muster profile unset <setting>
  muster profile delete <name>                 with its credential
  muster profile sync                          read the commands of the service of the profile

--profile <name> chooses the profile; default MUSTER_PROFILE, then default.`

const SETTINGS = ['url', 'project', 'output', 'ca_file'] as const

/** `muster profile`: lists and changes profiles. */
export async function profileCommand(args: string[]): Promise<number> {
  if (args.includes('--help') || args.length === 0) {
    await printLine(USAGE)
    return args.length === 0 ? EXIT.usage : EXIT.done
  }
  const parser = addConnectionOptions(createParser('muster profile')).argument('<verb>').argument('[values...]')
  const { options, positional } = parseWith(parser, args)
  const [verb, ...values] = positional
  const name = profileName(options.profile)
  const print = (value: unknown) => printLine(JSON.stringify(value, null, 2))
  switch (verb) {
    case 'list': {
      const profiles = await readProfiles()
      const signedIn = readCredentials()
      if (options.json) await print(profiles)
      else
        for (const [each, { url, project }] of Object.entries(profiles)) {
          const mark = each === name ? '*' : ' '
          const parts = [each, url ?? '', project ?? '', signedIn[each] ? 'signed in' : '']
          await printLine(`${mark} ${visible(parts.filter(Boolean).join('  '))}`)
        }
      return EXIT.done
    }
    case 'get': {
      const chosen = values[0] ?? name
      const profile = (await readProfiles())[chosen]
      if (!profile) throw new Failure(`there is no profile ${chosen}`, EXIT.missing, 'Try: muster profile list')
      await print(profile)
      return EXIT.done
    }
    case 'set':
      return change(name, values[0], values[1] ?? null)
    case 'unset':
      return change(name, values[0], undefined)
    case 'delete':
      return remove(values[0])
    case 'sync':
      return sync(await Connection.open(options))
    default:
      throw new UsageError(`there is no command profile ${verb}`, USAGE)
  }
}

async function change(name: string, setting: string | undefined, value: string | null | undefined): Promise<number> {
  if (!SETTINGS.includes(setting as 'url')) throw new UsageError(`the setting must be one of ${SETTINGS.join(', ')}`)
  if (value === null) throw new UsageError('a value is required', USAGE)
  if (setting === 'output' && value !== undefined && !['table', 'json', 'jsonl'].includes(value))
    throw new UsageError('output must be table, json or jsonl')
  if (setting === 'url' && value !== undefined) parseUrl(value)
  await saveProfile(name, profile => {
    const next: Profile = { ...profile }
    if (value === undefined) delete next[setting as 'url']
    else next[setting as 'url'] = value
    return next
  })
  return EXIT.done
}

async function remove(name: string | undefined): Promise<number> {
  if (!name) throw new UsageError('the name of the profile is required', USAGE)
  if (!(await readProfiles())[name]) throw new Failure(`there is no profile ${name}`, EXIT.missing)
  await saveProfile(name, () => undefined)
  await withLock(async () => storeCredential(name, null))
  fs.rmSync(cacheFile(name, '.'), { recursive: true, force: true })
  return EXIT.done
}

/** Stores the commands of the service of a profile, which then replace the commands of this version. */
async function sync(connection: Connection): Promise<number> {
  const file = cacheFile(connection.profile, 'commands.json')
  const stored = CommandTable.read(() => fs.readFileSync(file), true)
  const response = await connection.fetch(`${connection.base}/openapi.json`, {
    redirect: 'error',
    headers: stored?.etag ? { 'if-none-match': stored.etag } : {},
    signal: AbortSignal.any([interruption, AbortSignal.timeout(connection.options.timeout ?? 30_000)]),
  })
  if (response.status === 304) {
    note(`the commands of ${connection.base} have not changed`)
    return EXIT.done
  }
  if (!response.ok) throw new Failure(`${connection.base}/openapi.json answered ${response.status}`, EXIT.noAnswer)
  const description = await response.text()
  if (describedVersion(description) === null)
    throw new Failure(`no service of Muster answers at ${connection.base}`, EXIT.noAnswer)
  writePrivate(file, commandFile(JSON.parse(description), response.headers.get('etag')))
  const table = loadCommands(file)
  note(`${table.words().length} commands of version ${visible(table.version)}`)
  return EXIT.done
}
