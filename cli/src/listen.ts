import { signWebhook } from '@muster/client'
import { Caller } from './call.ts'
import { loadCommands } from './commands.ts'
import { Connection } from './connection.ts'
import { EXIT, type Failure, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseDuration, parseWith } from './parse.ts'
import { reportError } from './report.ts'
import { sleep } from './sleep.ts'
import { note, printLine, visible } from './terminal.ts'
import { fieldValue, isVisibleInArgv } from './values.ts'

const POLL_MS = 1000
/** An event is found although a transaction that began earlier has committed it later. */
const OVERLAP_MS = 30_000
const FORWARD_MS = 30_000

type Received = { id: string; event: string; timestamp: string; dispatched_at?: unknown }

const collect = (value: string, previous: string[] = []): string[] => [...previous, value]

/** `muster listen`: sends the events of a project to a local address as a webhook would, without registering one. */
export async function listenCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster listen'))
    .description('Forward new events of the project to a local address, signed as deliveries of webhooks are.')
    .option('--forward-to <address>', 'address that receives the events')
    .option('--event <name>', 'only these events, for example agents.*; repeatable', collect)
    .option('--secret <value>', 'secret of the signature: @file, @- or env:NAME; default a new one')
    .option('--header-prefix <prefix>', 'prefix of the headers', 'X-Svc-')
    .option('--interval <duration>', 'time between reads', parseDuration, POLL_MS)
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  const target = options.forwardTo
  if (!target || !URL.canParse(target) || !/^https?:/.test(target))
    throw new UsageError('--forward-to must be an http or https address', 'Try: muster listen --help')
  const secret = options.secret
    ? await secretOf(options.secret)
    : `whsec_${Buffer.from(crypto.getRandomValues(new Uint8Array(24))).toString('hex')}`
  if (!options.secret) note(`secret of the signatures: ${secret}`)
  const connection = await Connection.open(options)
  try {
    const caller = new Caller(connection, loadCommands())
    const forward = { target, secret, headerPrefix: options.headerPrefix, isJson: options.json === true }
    for await (const event of newEvents(caller, options.interval))
      if (isWanted(event.event, options.event)) await deliver(event, forward)
    return EXIT.done
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection, isJson: options.json })
  }
}

async function secretOf(given: string): Promise<string> {
  if (isVisibleInArgv(given)) throw new UsageError('--secret must be @file, @- or env:NAME')
  return (await fieldValue('--secret', { name: 'secret', in: 'body', secret: true }, [given])) as string
}

/** Yields the events that are written from now on, oldest first, each once. */
async function* newEvents(caller: Caller, interval: number): AsyncGenerator<Received> {
  const command = caller.commandById('listEvents')
  const seen = new Map<string, number>()
  const read = async (from: number): Promise<Received[]> => {
    const list = await caller.list(command, { from: new Date(from).toISOString() }, { signal: interruption })
    return (await list.all()) as Received[]
  }
  const timeOf = ({ timestamp }: Received) => Date.parse(timestamp)
  let newest = Date.now()
  // Events that exist already are not new.
  for (const event of await read(newest - OVERLAP_MS)) seen.set(event.id, timeOf(event))
  note('listening')
  for (;;) {
    await sleep(interval)
    for (const event of (await read(newest - OVERLAP_MS)).sort((a, b) => timeOf(a) - timeOf(b))) {
      if (seen.has(event.id)) continue
      seen.set(event.id, timeOf(event))
      newest = Math.max(newest, timeOf(event))
      yield event
    }
    for (const [id, time] of seen) if (time < newest - 2 * OVERLAP_MS) seen.delete(id)
  }
}

const isWanted = (name: string, patterns: readonly string[] | undefined): boolean =>
  !patterns ||
  patterns.some(
    pattern => pattern === '*' || pattern === name || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1))),
  )

type Forward = { target: string; secret: string; headerPrefix: string; isJson: boolean }

/** Sends one event and prints the status of the answer. */
async function deliver(event: Received, { target, secret, headerPrefix, isJson }: Forward): Promise<void> {
  const { dispatched_at: _, ...envelope } = event
  const body = JSON.stringify(envelope)
  const start = Date.now()
  let status: number | string
  try {
    const response = await fetch(target, {
      method: 'POST',
      body,
      redirect: 'manual',
      headers: {
        'content-type': 'application/json',
        [`${headerPrefix}Event`]: event.event,
        [`${headerPrefix}Event-Id`]: event.id,
        ...(await signWebhook({ rawBody: body, secret, headerPrefix })),
      },
      signal: AbortSignal.any([interruption, AbortSignal.timeout(FORWARD_MS)]),
    })
    await response.body?.cancel()
    status = response.status
  } catch (error) {
    interruption.throwIfAborted()
    const { message, cause } = error as Error
    status = cause instanceof Error ? cause.message || message : message
  }
  const ms = Date.now() - start
  if (isJson) await printLine(JSON.stringify({ id: event.id, event: event.event, status, ms }))
  else await printLine(`${event.timestamp}  ${visible(event.event)}  ${event.id}  ${visible(String(status))}  ${ms} ms`)
}
