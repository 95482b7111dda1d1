import type { Services } from '#core/base/services.ts'
import { generationKind } from '../model.ts'
import { readSteps } from './file.ts'

/** Returns the outputs of the calls of a turn's settled steps, by call; none if its content was erased. */
export async function readClientOutputs(
  services: Services,
  generationId: string,
): Promise<ReadonlyMap<string, unknown>> {
  const generation = await generationKind.find(services.pool, generationId)
  if (!generation || generation.content_redacted_at !== null) return new Map()
  const steps = await readSteps(services, generation)
  return new Map(
    steps.flatMap(({ tool_results }) =>
      (tool_results as { tool_call_id: string; result: unknown }[]).map(
        ({ tool_call_id, result }) => [tool_call_id, result] as const,
      ),
    ),
  )
}
