import { parseExactJson } from '@muster/client'
import { Connection } from './connection.ts'
import { EXIT, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseDuration, parseWith } from './parse.ts'
import { printField } from './render.ts'
import { reportError } from './report.ts'
import { outputSettings } from './run.ts'
import { isTerminal, printLine, visible, write } from './terminal.ts'
import { readBody } from './values.ts'

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE']
const collect = (value: string, previous: string[] = []): string[] => [...previous, value]

/** `muster api <METHOD> <path>`: sends any request with the credential in use and prints the body of the answer. */
export async function apiCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster api').description('Send any request.'))
    .argument('<method>', METHODS.join(', '))
    .argument('<path>', 'path of the service, such as /api/v1/agents?limit=1')
    .option('--body <json>', 'JSON, @file or @-')
    .option('-H, --header <name: value>', 'a header; repeatable', collect)
    .option('--print-request', 'print the request as curl and send nothing')
    .option('--timeout <duration>', 'limit of the answer', parseDuration)
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options, positional } = parseWith(parser, args)
  const method = positional[0].toUpperCase()
  const path = positional[1]
  if (!METHODS.includes(method)) throw new UsageError(`the method must be one of ${METHODS.join(', ')}`)
  if (!path.startsWith('/') || path.startsWith('//')) throw new UsageError('the path must start with one /')
  const body = options.body ? JSON.stringify(await readBody(options.body)) : undefined
  const headers = Object.fromEntries(
    ((options.header ?? []) as string[]).map(each => {
      const [, name, value] = /^([\w-]+):(.*)$/.exec(each) ?? []
      if (!name) throw new UsageError('--header must be name: value')
      return [name.toLowerCase(), value.trim()]
    }),
  )
  const connection = await Connection.open(options)
  const settings = outputSettings(options, connection.settings.output)
  try {
    const client = await connection.client()
    const request = {
      method,
      path,
      isKeyed: true,
      accept: '*/*',
      body,
      headers: (body === undefined ? {} : { 'content-type': 'application/json' }) as Record<string, string>,
    }
    await client.request(
      request,
      async response => {
        if (!settings.field) {
          const decoder = new TextDecoder()
          for await (const chunk of response.body ?? [])
            await write(isTerminal() ? visible(decoder.decode(chunk, { stream: true }), 'lines') : chunk)
          if (isTerminal()) await write('\n')
          return
        }
        await printField(parseExactJson(await response.text()), settings.field)
      },
      { signal: interruption, headers },
    )
    return EXIT.done
  } catch (error) {
    if (connection.isPrinted) return EXIT.done
    return reportError(error, { connection, isJson: options.json })
  }
}
