import type { AgentTurnEvent } from '@muster/client'
import { createAgentGenerationStream, submitAgentToolOutputsStream } from '@muster/client/operations'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { api } from '#api.ts'
import { type Arrival, advanceAll, clientCalls, type Turn } from './turn.ts'

type Stream = AsyncIterable<AgentTurnEvent> & { cancel(): Promise<void> }

/** The turns with one agent: a later turn has the earlier ones as messages. */
export function useExchange(agentId: string | undefined) {
  const cache = useQueryClient()
  const [turns, setTurns] = useState<Turn[]>([])
  const abort = useRef<AbortController | null>(null)
  const cancel = useRef<() => Promise<void>>(async () => {})
  useEffect(() => () => abort.current?.abort(), [])
  const last = turns[turns.length - 1]
  const isRunning = last !== undefined && last.endedMs === undefined

  /** Changes the last turn. */
  const change = (next: (turn: Turn) => Turn) =>
    setTurns(all => all.map((turn, index) => (index === all.length - 1 ? next(turn) : turn)))

  /** Reads a stream into the last turn. What arrives is collected, and drawn once a frame. */
  const read = async (startedAt: number, open: (signal: AbortSignal) => Stream) => {
    const controller = new AbortController()
    abort.current = controller
    const now = () => performance.now() - startedAt
    let arrived: Arrival[] = []
    let frame = 0
    const draw = () => {
      cancelAnimationFrame(frame)
      frame = 0
      const arrivals = arrived
      arrived = []
      if (arrivals.length > 0) change(turn => advanceAll(turn, arrivals))
    }
    try {
      const stream = open(controller.signal)
      cancel.current = () => stream.cancel()
      for await (const event of stream) {
        arrived.push({ event, ms: now() })
        frame ||= requestAnimationFrame(draw)
      }
      draw()
    } catch (error) {
      draw()
      const isStopped = controller.signal.aborted
      change(turn => ({ ...turn, endedMs: now(), ...(isStopped ? { isStopped } : { error }) }))
    } finally {
      void cache.invalidateQueries({ queryKey: ['start'] })
    }
  }

  return {
    turns,
    isRunning,
    async send(prompt: string) {
      if (!agentId || isRunning) return
      const history = turns.flatMap(({ prompt, result }) =>
        result?.output
          ? [
              { role: 'user' as const, content: prompt },
              { role: 'assistant' as const, content: result.output.content },
            ]
          : [],
      )
      const startedAt = performance.now()
      setTurns(all => [...all, { prompt, steps: [], startedAt }])
      const messages = [...history, { role: 'user' as const, content: prompt }]
      await read(startedAt, signal => createAgentGenerationStream(api, { agent_id: agentId, messages }, { signal }))
    },
    /** Submits the results of client tools, by the id of the call; the turn continues. */
    async answer(outputs: Record<string, unknown>) {
      if (!agentId || !last?.generationId) return
      const { startedAt, generationId: generation_id } = last
      const calls = clientCalls(last)
      const ms = performance.now() - startedAt
      change(turn => ({
        ...turn,
        result: undefined,
        endedMs: undefined,
        error: undefined,
        steps: [
          ...turn.steps,
          ...calls.map(({ tool_call_id: id, tool_name: name }) => ({
            kind: 'tool' as const,
            id,
            name,
            startedAt: ms,
            ms: 0,
            ok: true,
          })),
        ],
      }))
      const tool_outputs = calls.map(({ tool_call_id }) => ({ tool_call_id, output: outputs[tool_call_id] ?? null }))
      await read(
        startedAt,
        signal =>
          submitAgentToolOutputsStream(api, { agent_id: agentId, generation_id, tool_outputs }, { signal }) as Stream,
      )
    },
    stop() {
      void cancel.current().catch(() => {})
      abort.current?.abort()
    },
    /** Forgets a turn and those after it. */
    returnTo: (index: number) => setTurns(all => all.slice(0, index)),
  }
}
