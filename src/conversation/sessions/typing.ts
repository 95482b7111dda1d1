import { z } from 'zod'
import { itemOperation } from '#core/api/operation.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import type { Caller } from '#core/iam/caller.ts'
import { SESSION_CHANNEL } from '../dialog/messages/frames.ts'
import { typingAccess } from './end-user.ts'
import { sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'
import { requireOpen } from './session-locks.ts'
import type { Typing, TypingSide } from './stream-events.ts'

/** Shortest interval between two forwarded states of a side. */
const INTERVAL_MS = 2000
/** Time after which typing without a further signal has stopped. */
const EXPIRY_MS = 8000

/** Returns the side of a caller: a person with a user token is an operator, a key speaks for the end user. */
const typingSide = ({ credential }: Pick<Caller, 'credential'>): TypingSide =>
  credential.type === 'user' ? 'operator' : 'end_user'

type Side = { session_id: string; latest: Typing; sent: Typing['state'] | null; timer: NodeJS.Timeout; until: number }

/** Forwards typing to the readers of a session, at most once in two seconds per side and process. */
class TypingSignals {
  readonly #services: Services
  readonly #sides = new Map<string, Side>()

  constructor(services: Services) {
    this.#services = services
  }

  signal(session_id: string, typing: Typing): void {
    const key = `${session_id} ${typing.who}`
    const side = this.#sides.get(key)
    const until = Date.now() + (typing.state === 'started' ? EXPIRY_MS : 0)
    if (side) {
      side.latest = typing
      side.until = until
      return
    }
    if (typing.state === 'stopped') return
    const made: Side = { session_id, latest: typing, sent: null, until, timer: this.#every(key) }
    this.#sides.set(key, made)
    this.#forward(made)
  }

  #every(key: string): NodeJS.Timeout {
    return withoutTenant(() => setInterval(() => this.#tick(key), INTERVAL_MS)).unref()
  }

  /** Forwards the last change of a side, and its end. */
  #tick(key: string): void {
    const side = this.#sides.get(key)
    if (!side) return
    if (Date.now() >= side.until) side.latest = { ...side.latest, state: 'stopped' }
    if (side.latest.state !== side.sent) this.#forward(side)
    if (side.sent !== 'stopped') return
    clearInterval(side.timer)
    this.#sides.delete(key)
  }

  #forward(side: Side): void {
    side.sent = side.latest.state
    this.#services.notifier.notify({
      channel: SESSION_CHANNEL,
      payload: `${side.session_id} ${JSON.stringify(side.latest)}`,
    })
  }

  close(): void {
    for (const { timer } of this.#sides.values()) clearInterval(timer)
  }
}

const typingSignals = processSingleton(
  services => new TypingSignals(services),
  signals => signals.close(),
)

const TypingInput = z
  .strictObject({ state: z.enum(['started', 'stopped']).describe('State: started — repeat it while typing; stopped') })
  .meta({ id: 'SessionTypingInput' })

export const typingOperation = itemOperation(sessionKind, {
  id: 'signalSessionTyping',
  command: ['sessions', 'signal-typing'],
  method: 'post',
  path: '/sessions/{session_id}/typing',
  summary: 'Signal typing in a session',
  description:
    'Shows the other side in its session streams that the caller is typing, for eight seconds after the last signal. Nothing is stored.',
  tag: 'Sessions',
  action: 'sessions:SendSessionMessage',
  reads: true,
  endUser: typingAccess,
  internal: true,
  body: TypingInput,
  answers: { 204: null },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ services, caller, resource, body }) {
    requireOpen(resource)
    const { actor_id } = resource as SessionRow
    const who = typingSide(caller)
    const actor = who === 'end_user' && actor_id !== null ? { actor_id } : {}
    typingSignals(services).signal(resource.id, { who, state: body.state, ...actor })
  },
})
