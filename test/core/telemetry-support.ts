import assert from 'node:assert/strict'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client, eventually } from '../support/app.ts'
import { type Collector, type ReceivedSpan, startCollector } from '../support/collector.ts'
import { GARBAGE_FLAGS, startProcess, type TestProcess } from '../support/processes.ts'

/** An application whose web and worker are processes that export to a collector. */
export type TracedApp = AgentApp & {
  collector: Collector
  /** Starts a process; `env` adds to the settings, `flags` are flags of node. */
  start(
    kind: 'web' | 'worker',
    env?: Record<string, string>,
    options?: { args?: string[]; flags?: string[] },
  ): Promise<TestProcess>
  /** The same credential at another process. */
  at(process: TestProcess, as?: { token: string | null }): ReturnType<typeof client>
  /** A span once it has arrived. */
  span(find: (span: ReceivedSpan) => boolean, what: string): Promise<ReceivedSpan>
}

const EXPORTED = {
  OTEL_TRACES_SAMPLER: 'always_on',
  OTEL_BSP_SCHEDULE_DELAY: '50',
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  PROVIDER_MAX_RETRIES: '0',
  SHUTDOWN_GRACE_MS: '5000',
}

export async function startTracedApp(options: Parameters<typeof startAgentApp>[0] = {}): Promise<TracedApp> {
  const collector = await startCollector()
  const app = await startAgentApp({ workers: [], ...options })
  const processes: TestProcess[] = []
  return {
    ...app,
    collector,
    async start(kind, env = {}, { args = [], flags = [] } = {}) {
      const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }
      const made = await startProcess(kind, app.databaseUrl, { ...EXPORTED, ...endpoint, ...env }, args, [
        ...GARBAGE_FLAGS,
        ...flags,
      ])
      processes.push(made)
      return made
    },
    at: ({ url }, as = app.key) => client(url, as.token),
    span: (find, what) => eventually(() => collector.spans.find(find), { what }),
    async close() {
      await Promise.all(
        processes.map(async each => {
          if (each.child.exitCode === null && each.child.signalCode === null) await each.kill()
        }),
      )
      await app.close()
      await collector.close()
    },
  }
}

/** Requires that a span lies below another, in the same trace. */
export function assertBelow(span: ReceivedSpan, parent: ReceivedSpan): void {
  assert.deepEqual([span.trace, span.parent], [parent.trace, parent.id], `${span.name} below ${parent.name}`)
}
