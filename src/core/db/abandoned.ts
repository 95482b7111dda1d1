import { connect } from 'node:net'
import { onPending, type PendingStatement, pendingStatements } from './pg-client.ts'
import { withoutTenant } from './tenant-context.ts'

const PERIOD_MS = 250
/** How long a server is given to take a cancellation. */
const CANCEL_MS = 2000
const CANCEL_REQUEST = 80_877_102

/**
 * Cancels statements that nobody waits for any more: a slow search would hold its connection and a processor of the server to
 * the end. Statements that are slow are looked at while some are under way; the others cost nothing.
 */
export function cancelAbandoned(): { close(): void } {
  let timer: NodeJS.Timeout | undefined
  const stop = () => {
    clearInterval(timer)
    timer = undefined
  }
  const look = () => {
    let some = false
    for (const statement of pendingStatements()) {
      some = true
      if (statement.isAbandoned?.()) statement.cancelling ??= cancel(statement.client)
    }
    if (!some) stop()
  }
  const ignore = onPending(() => {
    timer ??= withoutTenant(() => setInterval(look, PERIOD_MS)).unref()
  })
  return {
    close() {
      ignore()
      stop()
    },
  }
}

/**
 * Asks the server, over a connection of its own, to cancel what a client has under way. Resolves when the server has closed
 * it, which it does once the statement is told, or when the server cannot be asked.
 */
function cancel(client: PendingStatement['client']): Promise<void> {
  const { host, port, processID, secretKey } = client as typeof client & { processID: number; secretKey: number }
  const message = Buffer.alloc(16)
  for (const [place, value] of [message.length, CANCEL_REQUEST, processID, secretKey].entries())
    message.writeInt32BE(value, place * 4)
  return new Promise(resolve => {
    const socket = host.startsWith('/') ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, host)
    socket.setTimeout(CANCEL_MS, () => socket.destroy())
    socket.on('error', () => {})
    socket.once('close', () => resolve())
    socket.resume()
    socket.write(message)
  })
}
