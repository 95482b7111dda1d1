import { createWriteStream, openAsBlob } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { Caller } from './call.ts'
import {
  type ApiCommand,
  type CommandTable,
  flagOf,
  hasJsonBody,
  isDownload,
  isTurn,
  mayCost,
  needsConfirmation,
  takesProject,
  writesText,
} from './commands.ts'
import { rememberIds } from './completion-ids.ts'
import { Connection } from './connection.ts'
import { EXIT, type Failure, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { type Parsed, parseCommand } from './parse.ts'
import { columnsOf, printAnswer, printField, Table } from './render.ts'
import { reportError } from './report.ts'
import { sleep } from './sleep.ts'
import {
  ask,
  canAsk,
  isTerminal,
  note,
  type OutputSettings,
  printLine,
  readStdin,
  requireYes,
  visible,
  write,
} from './terminal.ts'
import { fieldValue, flatten, isVisibleInArgv, missingFlags, readBody, setPath } from './values.ts'

type Args = Record<string, unknown>

/** Commands of stdin that run at the same time. */
const CONCURRENT = 8
const FOLLOW_POLL_MS = 2000
/**
 * 100,000 items need 190 MB without these flags and 103 MB with them. The optimizing compilers of JavaScript and of the
 * HTTP parser, which is WebAssembly, take 20 MB of it and save 0.5 s.
 */
const SMALL_MEMORY_FLAGS = [
  '--max-semi-space-size=1',
  '--semi-space-growth-factor=1',
  '--optimize-for-size',
  '--liftoff-only',
  '--no-opt',
  '--no-maglev',
]

/** Runs an API command. Returns the exit code. */
export async function runCommand(table: CommandTable, command: ApiCommand, rest: readonly string[]): Promise<number> {
  let connection: Connection | undefined
  let args: Args = {}
  let isJson = false
  try {
    const parsed = parseCommand(command, rest)
    const { options } = parsed
    isJson = options.json === true
    refuseVisibleSecrets(command, parsed)
    args = await argumentsOf(command, parsed)
    const secrets = command.fields.flatMap(({ name, secret }) => (secret && args[name] ? [String(args[name])] : []))
    connection = await Connection.open({ ...options, secrets })
    const settings = outputSettings(options, connection.settings.output)
    const missing = missingFlags(command, withProject(command, args, connection))
    if (missing.length > 0)
      throw new UsageError(`${missing.join(', ')} ${missing.length > 1 ? 'are' : 'is'} required`, help(command))
    const caller = new Caller(connection, table)
    if (options.dryRun && command.dryRun && command.dryRun !== 'dry_run')
      return await dryRun(caller, command, args, settings)
    const run = (own: Args, print: OutputSettings) => execute({ caller, command, args: own, options, settings: print })
    const repeated = Object.entries(parsed.path).find(([, value]) => value === '-')
    if (!options.printRequest) {
      await confirm(command, parsed, repeated !== undefined)
      if (mayCost(command) && args.matrix) {
        if (repeated && !options.yes)
          throw new UsageError('checks of several providers need a confirmation', 'Add --yes.')
        if (!repeated) await confirmCost(caller, command, args, options.yes)
      }
    }
    if (!repeated) return await run(args, settings)
    return await repeat(table, { command, args, parsed, settings, name: repeated[0] }, connection)
  } catch (error) {
    if (connection?.isPrinted) return EXIT.done
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection, command, args, isJson })
  }
}

const help = ({ words }: ApiCommand): string => `Try: muster ${words.join(' ')} --help`

/** Project choice satisfies a required project. */
function withProject(command: ApiCommand, args: Args, { projectChoice }: Connection): Args {
  return takesProject(command) && projectChoice ? { project_id: projectChoice, ...args } : args
}

/** Returns how the output is printed, by options, environment and profile. */
export function outputSettings(options: Record<string, any>, preferred?: string): OutputSettings {
  const chosen = process.env.MUSTER_OUTPUT || preferred
  const format =
    options.jsonl || options.events
      ? 'jsonl'
      : options.json
        ? 'json'
        : options.columns
          ? 'table'
          : chosen === 'json' || chosen === 'jsonl' || chosen === 'table'
            ? chosen
            : isTerminal()
              ? 'table'
              : 'json'
  return {
    format,
    isHuman: format === 'table',
    field: options.field,
    columns: options.columns?.split(','),
    isUtc: options.utc === true,
    isQuiet: options.quiet === true,
  }
}

/** Refuses secrets among the arguments, which other users of the machine can read. */
function refuseVisibleSecrets(command: ApiCommand, { fields, options }: Parsed): void {
  for (const [field, given] of fields)
    if (field.secret && Array.isArray(given) && given.some(isVisibleInArgv) && !options.allowArgv)
      throw new UsageError(
        `--${flagOf(command, field)} is a secret, and arguments are visible to other users`,
        'Use @file, @- for stdin or env:NAME as its value, or add --allow-argv.',
      )
}

/** Returns the flat arguments of a command line. */
export async function argumentsOf(command: ApiCommand, { path: inPath, fields, options }: Parsed): Promise<Args> {
  const body: Args = options.body ? await readBody(options.body) : {}
  for (const assignment of options.set ?? []) setPath(body, assignment, { isText: command.open })
  const args: Args = { ...(hasJsonBody(command) ? flatten(command, body) : {}), ...inPath }
  for (const [field, given] of fields) {
    const flag = `--${flagOf(command, field)}`
    args[field.name] = typeof given === 'boolean' ? given : await fieldValue(flag, field, given)
  }
  for (const name of options.clear ?? [])
    Object.assign(args, flatten(command, { [command.open ? name : name.replaceAll('-', '_')]: null }))
  for (const field of command.fields)
    if (field.secret && field.required && args[field.name] === undefined && canAsk())
      args[field.name] = await ask(`${field.name}: `, { isSecret: true })
  if (command.wait && options.wait === false) args[command.wait.parameter] = false
  if (command.consumes) await addFile(command, args, options)
  return args
}

/** Adds the file of `--file`, which is read while it is sent. */
async function addFile(command: ApiCommand, args: Args, options: Record<string, any>): Promise<void> {
  const { file } = options
  if (!file) throw new UsageError('--file is required', help(command))
  const takesName = command.fields.some(each => each.name === 'filename')
  const name = (takesName ? args.filename : options.filename) ?? (file === '-' ? undefined : path.basename(file))
  if (file === '-' && takesName && name === undefined) throw new UsageError('--file - needs --filename')
  const takesType = command.fields.some(each => each.name === 'content_type')
  const type = (takesType ? args.content_type : options.contentType) ?? typeOfName(name, command.consumes!)
  if (file === '-') {
    const { Readable } = await import('node:stream')
    args.file = Readable.toWeb(process.stdin)
  } else {
    try {
      args.file = await openAsBlob(file, type ? { type } : {})
    } catch (error) {
      throw new UsageError(`${file} cannot be read: ${(error as Error).message}`)
    }
  }
  if (takesName || command.consumes!.includes('multipart/form-data')) args.filename = name
  if (!command.consumes!.includes('multipart/form-data')) args.content_type = type
}

/** Returns the type of a file among those that a command takes. */
function typeOfName(name: string | undefined, types: readonly string[]): string | undefined {
  const bySuffix = { '.csv': 'text/csv', '.ndjson': 'application/x-ndjson', '.jsonl': 'application/x-ndjson' }
  const found = bySuffix[path.extname(name ?? '') as '.csv']
  return found && types.includes(found) ? found : undefined
}

/** Requires a confirmation before records are deleted or secrets replaced. */
async function confirm(
  command: ApiCommand,
  { path: inPath, fields, options }: Parsed,
  usesStdin: boolean,
): Promise<void> {
  const isDryRun = [...fields].some(([{ name }, given]) => name === 'dry_run' && given === true)
  if (!needsConfirmation(command) || isDryRun || options.yes) return
  const what = `${command.words.join(' ')} ${Object.values(inPath).join(' ')}`.trim()
  if (!canAsk() || usesStdin) throw new UsageError(`${what} needs a confirmation`, 'Add --yes.')
  await requireYes(`${visible(what)}?`)
}

/** Shows what a command will cost, and requires a confirmation. */
async function confirmCost(caller: Caller, command: ApiCommand, args: Args, isConfirmed: boolean): Promise<void> {
  const { calls, input_tokens, output_tokens, cost_usd, model } = await checkOf(caller, command, args)
  const cost = cost_usd === null ? 'without a price' : `about $${cost_usd}`
  const text = `${calls} calls of ${visible(model)}, about ${input_tokens} input and ${output_tokens} output tokens, ${cost}`
  if (isConfirmed) return note(text)
  if (!canAsk()) throw new UsageError(`${text}: needs a confirmation`, 'Add --yes.')
  await requireYes(`${text}. Continue?`, 'no call was made')
}

/** Runs the check of a command instead of the command. */
async function dryRun(caller: Caller, command: ApiCommand, args: Args, settings: OutputSettings): Promise<number> {
  const answer = await checkOf(caller, command, args)
  await printAnswer(answer, caller.connection.body, settings)
  return (answer as { valid?: boolean })?.valid === false ? EXIT.invalid : EXIT.done
}

/** Returns the answer of the check of a command. */
async function checkOf(caller: Caller, command: ApiCommand, args: Args): Promise<any> {
  const check = caller.commandById(command.dryRun!)
  const known = Object.fromEntries(
    Object.entries(args).filter(([name]) => check.fields.some(each => each.name === name)),
  )
  return caller.call(check, known, { signal: interruption })
}

type Execution = {
  caller: Caller
  command: ApiCommand
  args: Args
  options: Record<string, any>
  settings: OutputSettings
}

async function execute(execution: Execution): Promise<number> {
  const { caller, command, args, options, settings } = execution
  const requestOptions = {
    signal: interruption,
    ...(options.idempotencyKey ? { idempotencyKey: options.idempotencyKey } : {}),
    ...(options.ifMatch ? { ifMatch: options.ifMatch } : {}),
  }
  if (command.stream && !command.stream.selected_by) return followStream(caller, command, args, settings)
  if (options.follow) return follow(execution)
  if (writesText(command) && options.wait !== false) return turn(execution, requestOptions)
  if (command.paged && (options.all || options.max)) return printAll(execution)
  if (isDownload(command)) return download(execution)
  if (command.wait && options.wait) {
    const { startAndWait, requireSuccess } = await import('./wait.ts')
    const { timeout, cancelOnInterrupt: isCancelledOnInterrupt } = options
    const wait = { settings, timeout, isCancelledOnInterrupt }
    const record = await startAndWait(caller, command, args, wait, requestOptions)
    await printAnswer(record, caller.connection.body, settings)
    requireSuccess(record, command)
    return EXIT.done
  }
  const answer = command.paged
    ? await (await caller.list(command, args, requestOptions)).page()
    : await caller.call(command, args, requestOptions)
  if (command.paged && answer) rememberIds(caller.connection, command, answer.data)
  if (answer === undefined) return EXIT.done
  await printAnswer(answer, caller.connection.body, settings, command.columns)
  if (settings.isHuman && !settings.isQuiet && answer.total > answer.data?.length)
    note(`${answer.data.length} of ${answer.total}; --all prints all`)
  if (command.wait) (await import('./wait.ts')).requireSuccess(answer, command)
  return EXIT.done
}

async function turn({ caller, command, args, options, settings }: Execution, requestOptions: object): Promise<number> {
  const isStreamed = options.events ? false : (options.stream ?? (settings.isHuman && isTerminal() && !settings.field))
  if (!isTurn(command)) {
    const { streamChat } = await import('./chat-completion.ts')
    return streamChat(caller, command, args, { isStreamed, areEventsPrinted: options.events === true, settings })
  }
  if (isStreamed && command.id === 'sendSessionMessage')
    return sendStreamed({ caller, command, args, options, settings })
  const { printCalls, runTurn } = await import('./turns.ts')
  const tools = options.tools ? await (await import('./tools.ts')).loadTools(options.tools) : undefined
  const { end, data } = await runTurn(
    caller,
    command,
    args,
    {
      settings,
      isStreamed,
      areEventsPrinted: options.events === true,
      tools,
      isCancelledOnInterrupt: options.cancelOnInterrupt,
    },
    requestOptions,
  )
  if ((!isStreamed || !end) && !options.events) await printAnswer(data, JSON.stringify(data), settings)
  if (end?.event !== 'requires_action') return EXIT.done
  printCalls(end, command, args)
  return EXIT.workWaits
}

/** Sends a message to a session and prints the text of its turn as it comes, which only the session streams. */
async function sendStreamed({ caller, command, args, options, settings }: Execution): Promise<number> {
  const { SessionPrinter } = await import('./session-printer.ts')
  const tools = options.tools ? await (await import('./tools.ts')).loadTools(options.tools) : undefined
  const printer = new SessionPrinter(caller, args.session_id as string, { tools, isQuiet: settings.isQuiet })
  await printer.open()
  const sending = caller.call(command, args, { signal: interruption })
  printer.printOnly(sending.then(({ generation_id }) => generation_id))
  const message = await sending
  if (!message.generation_id) {
    await printAnswer(message, caller.connection.body, settings)
    return EXIT.done
  }
  try {
    const outcome = await printer.endOf(message.generation_id)
    return { completed: EXIT.done, failed: EXIT.workFailed, waits: EXIT.workWaits }[outcome]
  } catch (error) {
    if (interruption.aborted) note(`The turn continues: muster generations get ${message.generation_id}`)
    throw error
  }
}

/** Prints the items of all pages as they arrive. */
async function printAll({ caller, command, args, options, settings }: Execution): Promise<number> {
  const { setFlagsFromString } = await import('node:v8')
  for (const flag of SMALL_MEMORY_FLAGS) setFlagsFromString(flag)
  const list = await caller.list(command, args, { signal: interruption })
  const max: number = options.max ?? Number.POSITIVE_INFINITY
  let table: Table | null = null
  let count = 0
  let batch: unknown[] = []
  const flush = async () => {
    if (settings.field) for (const each of batch) await printField(each, settings.field)
    else if (settings.format === 'jsonl') await write(batch.map(each => `${JSON.stringify(each)}\n`).join(''))
    else if (settings.format === 'json')
      await write(
        batch.map((each, index) => `${count - batch.length + index > 0 ? ',' : ''}${JSON.stringify(each)}`).join(''),
      )
    else if (batch.length > 0) {
      if (!table) {
        table = new Table(settings.columns ?? command.columns ?? columnsOf(batch), settings)
      }
      await table.print(batch)
    }
    batch = []
  }
  const isArray = settings.format === 'json' && !settings.field
  if (isArray) await write('[')
  for await (const item of list) {
    batch.push(item)
    count++
    if (count >= max) break
    if (batch.length >= 100) await flush()
  }
  await flush()
  if (isArray) await write(']\n')
  return EXIT.done
}

/** Writes an answer that is not JSON to a file or stdout. */
async function download({ caller, command, args, options, settings }: Execution): Promise<number> {
  const content = await caller.download(command, args, { signal: interruption })
  if (!options.output) {
    if (isTerminal() && !/^text\/|ndjson/.test(content.type)) {
      content.close()
      throw new UsageError(`the answer is ${content.type || 'binary'}`, 'Add --output <file>.')
    }
    const decoder = new TextDecoder()
    for await (const chunk of content)
      await write(isTerminal() ? visible(decoder.decode(chunk, { stream: true }), 'lines') : chunk)
    return EXIT.done
  }
  const partial = `${options.output}.part`
  const { pipeline } = await import('node:stream/promises')
  try {
    await pipeline(content, createWriteStream(partial))
    await rename(partial, options.output)
  } catch (error) {
    await rm(partial, { force: true })
    throw error
  }
  if (!settings.isQuiet) note(`${options.output}`)
  return EXIT.done
}

/** Prints the events of a stream until it ends. */
async function followStream(
  caller: Caller,
  command: ApiCommand,
  args: Args,
  settings: OutputSettings,
): Promise<number> {
  const { eventLine, exitCodeOfEvent } = await import('./events.ts')
  const stream = await caller.stream(command, args, { signal: interruption })
  let code: number = EXIT.done
  for await (const event of stream) {
    await printLine(settings.isHuman ? eventLine(event, settings) : JSON.stringify(event))
    code = exitCodeOfEvent(event)
  }
  return code
}

/** Follows a record by its stream, else by reading it again. */
async function follow({ caller, command, args, settings }: Execution): Promise<number> {
  const stream = caller.find([...command.words.slice(0, -1), 'stream'])
  if (stream) {
    const known = stream.fields.map(each => each.name)
    const own = Object.fromEntries(Object.entries(args).filter(([name]) => known.includes(name)))
    return followStream(caller, stream, own, settings)
  }
  let last = ''
  for (;;) {
    const record = await caller.call(command, args, { signal: interruption })
    const text = JSON.stringify(record)
    if (text !== last) await printAnswer(record, `${caller.connection.body}\n`, settings)
    last = text
    await sleep(FOLLOW_POLL_MS)
  }
}

type Repetition = { command: ApiCommand; args: Args; parsed: Parsed; settings: OutputSettings; name: string }

/** Runs a command for each line of stdin. The output has the order of the lines. */
async function repeat(
  table: CommandTable,
  { command, args, parsed, settings, name }: Repetition,
  connection: Connection,
): Promise<number> {
  const ids = (await readStdin())
    .toString('utf8')
    .split(/\r?\n/)
    .map(each => each.trim())
    .filter(Boolean)
  const plain = !command.paged && !isDownload(command) && !writesText(command) && !command.stream
  if (!plain || parsed.options.follow) throw new UsageError('this command cannot be repeated for the lines of stdin')
  let code = 0
  const running: Promise<{ answer?: any; body: string; error?: unknown; args: Args }>[] = []
  const one = async (id: string) => {
    const own = { ...args, [name]: id }
    // A separate connection, because each keeps its last answer.
    const each = await Connection.open(connection.options)
    try {
      const answer = await new Caller(each, table).call(command, own, { signal: interruption })
      return { answer, body: each.body, args: own }
    } catch (error) {
      return { error, body: each.body, args: own }
    }
  }
  let next = 0
  while (next < Math.min(CONCURRENT, ids.length)) running.push(one(ids[next++]))
  while (running.length > 0) {
    const { answer, body, error, args: own } = await running.shift()!
    if (next < ids.length) running.push(one(ids[next++]))
    if (error) {
      const failed = reportError(error, { connection, command, args: own, isJson: parsed.options.json })
      code ||= failed
    } else if (answer !== undefined) {
      if (settings.format === 'json' && !settings.field) await write(`${body}\n`)
      else await printAnswer(answer, body, settings)
    }
  }
  return code
}
