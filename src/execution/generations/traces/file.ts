import type { FileRow } from '#content/files/model.ts'
import { fileBytes } from '#content/files/read-file.ts'
import { acquireReadMemory } from '#content/files/read-memory.ts'
import { AppError } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import type { GenerationRow, JournalStepRow } from '../model.ts'
import { findStepsAndFile } from './store.ts'

/** A settled step in the steps file: as in a transcript, with the id of its generation. */
export type FileStep = Omit<JournalStepRow, 'n'> & { generation_id: string; index: number }

export const toFileStep = (generation_id: string, { n, ...step }: JournalStepRow): FileStep => ({
  generation_id,
  index: n - 1,
  ...step,
})

/** Returns the bytes of a steps file: a JSON array, one step per line. */
export const encodeSteps = (steps: readonly FileStep[]): Buffer =>
  Buffer.from(`[\n${steps.map(step => JSON.stringify(step)).join(',\n')}\n]\n`)

/** Returns the steps of a file; null if its bytes are lost. */
export async function stepsOfFile(services: Services, file: FileRow): Promise<FileStep[] | null> {
  const release = await acquireReadMemory(services, file.project_id, file.size ?? 0)
  try {
    const bytes = await fileBytes(services, file, Number.POSITIVE_INFINITY)
    return bytes && (parseExactJson(bytes.toString()) as FileStep[])
  } finally {
    release()
  }
}

/** Attempts to read a file that is being rewritten. */
const MAX_READS = 5

/**
 * Returns the steps of a generation from the journal or, once flushed, from the file of its trace. Lost bytes are
 * logged and give no steps.
 * @throws FILE_STORAGE_MISCONFIGURED
 */
export async function readSteps(
  services: Services,
  generation: Pick<GenerationRow, 'id' | 'trace_id'>,
): Promise<JournalStepRow[]> {
  let lostLocation: string | null = null
  for (let read = 1; ; read++) {
    const { steps, file } = await findStepsAndFile(services.pool, generation)
    if (steps.length > 0 || !file) return steps
    const isFinal = file.location === lostLocation || read === MAX_READS
    try {
      const found = await stepsOfFile(services, file)
      if (found)
        return found
          .filter(step => step.generation_id === generation.id)
          .map(({ generation_id: _, index, ...step }) => ({ n: index + 1, ...step }))
    } catch (error) {
      // A concurrent rewrite deletes the bytes that are being read; a second failure with the same bytes is an error.
      if (isFinal || (error instanceof AppError && error.code === 'SERVICE_NOT_READY')) throw error
    }
    if (isFinal) {
      services.log.error({ trace_id: generation.trace_id, file_id: file.id }, 'trace steps lost')
      return []
    }
    lostLocation = file.location
  }
}
