import { NoAnswer } from '@muster/client'
import { VERSION } from '../../client/src/generated/version.ts'
import { Connection } from './connection.ts'
import { EXIT } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { reportError } from './report.ts'
import { note, printLine } from './terminal.ts'
import { describedVersion, isOtherMinor } from './versions.ts'

/** Reads the version of a service from the start of its description. @throws Error if the address is of no service */
async function serverVersion(connection: Connection): Promise<string> {
  const response = await globalThis.fetch(`${connection.base}/openapi.json`, {
    redirect: 'error',
    signal: AbortSignal.any([interruption, AbortSignal.timeout(connection.options.timeout ?? 30_000)]),
  })
  let text = ''
  const decoder = new TextDecoder()
  for await (const chunk of response.body ?? []) {
    text += decoder.decode(chunk, { stream: true })
    const version = describedVersion(text)
    // Leaving the loop ends the transfer of the rest.
    if (version !== null) return version
    if (text.length > 100_000) break
  }
  throw new Error(`no service of Muster answers at this address (status ${response.status})`)
}

/** `muster version`: prints the versions of this program and of the service. */
export async function versionCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster version').description('Print both versions.'))
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  const connection = await Connection.open(options)
  let server: string | null = null
  let code: number = EXIT.done
  try {
    server = await serverVersion(connection)
  } catch (error) {
    connection.step = null
    code = reportError(new NoAnswer('network', `${connection.url.origin}: ${(error as Error).message}`), { connection })
  }
  if (options.json) await printLine(JSON.stringify({ client: VERSION, server }))
  else await printLine(`muster ${VERSION}\nservice ${server ?? 'unknown'} (${connection.base})`)
  if (server && isOtherMinor(VERSION, server))
    note('muster: the versions differ; muster profile sync reads the commands of the service')
  return code
}
