import type { FileRow } from '../../../content/files/model.ts'
import { fileBytes } from '../../../content/files/read-file.ts'
import { acquireReadMemory } from '../../../content/files/read-memory.ts'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow, JournalStepRow } from '../model.ts'
import { findJournal } from './store.ts'

/** A settled step as the steps file of its trace has it: the form of a transcript, and whose step it is. */
export type FileStep = Omit<JournalStepRow, 'n'> & { generation_id: string; index: number }

export const toFileStep = (generation_id: string, { n, ...step }: JournalStepRow): FileStep => ({
  generation_id,
  index: n - 1,
  ...step,
})

/** The bytes of a steps file: a JSON array, one step a line. */
export const encodeSteps = (steps: readonly FileStep[]): Buffer =>
  Buffer.from(`[\n${steps.map(step => JSON.stringify(step)).join(',\n')}\n]\n`)

/** The steps that a file has; null when its bytes are gone. */
export async function stepsOfFile(services: Services, file: FileRow): Promise<FileStep[] | null> {
  const release = await acquireReadMemory(services, file.project_id, file.size ?? 0)
  try {
    const bytes = await fileBytes(services, file, Number.POSITIVE_INFINITY)
    return bytes && (JSON.parse(bytes.toString()) as FileStep[])
  } finally {
    release()
  }
}

/** How often a file is read that is written anew meanwhile. */
const READS = 5

/**
 * The steps of a generation, wherever they are: in the journal, or once it has settled in the file of its trace. Bytes
 * that the storage has lost are logged and give no steps.
 * @throws FILE_STORAGE_MISCONFIGURED
 */
export async function readSteps(
  services: Services,
  generation: Pick<GenerationRow, 'id' | 'trace_id'>,
): Promise<JournalStepRow[]> {
  let gone: string | null = null
  for (let read = 1; ; read++) {
    const { steps, file } = await findJournal(services.pool, generation)
    if (steps.length > 0 || !file) return steps
    const failure = file.location === gone || read === READS
    try {
      const found = await stepsOfFile(services, file)
      if (found)
        return found
          .filter(step => step.generation_id === generation.id)
          .map(({ generation_id: _, index, ...step }) => ({ n: index + 1, ...step }))
    } catch (error) {
      // A rewrite takes the bytes away from under a reader; the same bytes failing twice is something else.
      if (failure) throw error
    }
    if (failure) {
      services.log.error({ trace_id: generation.trace_id, file_id: file.id }, 'the steps of a trace are lost')
      return []
    }
    gone = file.location
  }
}
