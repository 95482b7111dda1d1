import type { Caller } from './call.ts'
import type { ApiCommand } from './commands.ts'
import { EXIT, Failure, isNoAnswer } from './failure.ts'
import { interruption } from './interrupt.ts'
import { note, type OutputSettings, visible } from './terminal.ts'

type WorkRecord = Record<string, any> & { status?: string }

export type WaitOptions = {
  settings: Pick<OutputSettings, 'isQuiet'>
  /** Limit of the wait in milliseconds. */
  timeout?: number
  isCancelledOnInterrupt?: boolean
}

/**
 * Starts the work of a command and waits until it has ended, with its status on stderr. Returns its record.
 * @throws Failure if the work failed, waits for an input, or still runs after the timeout
 */
export async function startAndWait(
  caller: Caller,
  command: ApiCommand,
  args: Record<string, unknown>,
  { settings, timeout, isCancelledOnInterrupt }: WaitOptions,
  requestOptions: object,
): Promise<WorkRecord> {
  const { call } = await caller.work(command, { ...args, [command.wait!.parameter]: false }, requestOptions)
  const started: WorkRecord = (await call) ?? {}
  const id = started.id ?? Object.values(args)[0]
  const start = Date.now()
  let shown = ''
  const onRecord = (record: WorkRecord) => {
    const text = progressOf(record)
    if (settings.isQuiet || text === shown) return
    shown = text
    note(`${visible(String(id))} ${text}  ${((Date.now() - start) / 1000).toFixed(1)} s`)
  }
  try {
    return await call.settled({ signal: interruption, onRecord, ...(timeout ? { timeoutMs: timeout } : {}) })
  } catch (error) {
    if (interruption.aborted) await afterInterrupt(caller, command, String(id), isCancelledOnInterrupt)
    if (timeout && isNoAnswer(error) && error.reason === 'timeout' && Date.now() - start + 5000 >= timeout)
      throw new Failure(`${id} still runs after ${timeout / 1000} s`, EXIT.timeout)
    throw failureOf(error, command)
  }
}

function progressOf(record: WorkRecord): string {
  const done = record.completed_count ?? record.done
  const total = record.item_count ?? record.total
  const count = typeof done === 'number' && typeof total === 'number' ? ` ${done}/${total}` : ''
  return `${visible(record.status ?? '')}${count}`
}

async function afterInterrupt(caller: Caller, command: ApiCommand, id: string, isCancelled = false): Promise<void> {
  const read = caller.commandById(command.wait!.poll)
  const cancel = caller.find([...read.words.slice(0, -1), 'cancel'])
  if (!isCancelled || !cancel) {
    note(`\n${id} continues: muster ${read.words.join(' ')} ${id}`)
    return
  }
  const name = /\{(\w+)\}[^{]*$/.exec(cancel.path)![1]
  await caller.call(cancel, { [name]: id })
  note(`\n${id} was cancelled`)
}

/** Turns the end of work into the error of its exit code, with the command that continues. */
function failureOf(error: unknown, command: ApiCommand): unknown {
  const { name, record, code, message } = error as Error & { record?: WorkRecord; code?: string | null }
  if (name === 'WorkFailed')
    return new Failure(
      `${record?.id ?? 'the work'} ${record?.status ?? 'failed'}: ${message}${code ? ` (${code})` : ''}`,
      EXIT.workFailed,
    )
  if (name === 'WorkWaits') return waiting(record ?? {}, command)
  return error
}

/** The failure of work that waits for an input, with the command that answers. */
export function waiting(record: WorkRecord, command: Pick<ApiCommand, 'words'>): Failure {
  const [action] = record.required_actions ?? []
  const prompt = action?.prompt ? `: ${action.prompt}` : ''
  return new Failure(
    `${record.id} waits (${action?.type ?? record.status})${prompt}`,
    EXIT.workWaits,
    `Try: ${answerOf(record, action) ?? `muster ${command.words[0]} get ${record.id}`}`,
  )
}

function answerOf(run: WorkRecord, action: Record<string, any> | undefined): string | null {
  switch (action?.type) {
    case 'human_input':
      return `muster orchestration-runs submit-human-input ${run.id} --node-id ${action.node_id} --output '{…}'`
    case 'approval':
      return `muster approvals approve ${action.approval_id}`
    case 'paused':
      return `muster orchestration-runs resume ${run.id}`
    case 'nested_run':
      return `muster orchestration-runs get ${action.orchestration_run_id}`
    case 'generation':
      return `muster generations get ${action.generation_id}`
    default:
      return null
  }
}

/** Whether a record that an operation answered with, after waiting itself, is of work that failed. */
export function requireSuccess(record: WorkRecord | undefined, command: ApiCommand): void {
  const status = record?.status ?? ''
  if (command.wait?.failed.includes(status)) {
    const { code, message } = record?.error ?? {}
    throw new Failure(
      `${record?.id} ${status}${message ? `: ${message}` : ''}${code ? ` (${code})` : ''}`,
      EXIT.workFailed,
    )
  }
  if (command.wait?.paused.includes(status)) throw waiting(record!, command)
  if (record?.passed === false) throw new Failure(`${record.id} did not pass`, EXIT.workFailed)
}
