import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import type { ConfinedAnswer, ConfinedRequest } from './confined-processes.ts'

/** Arguments of the program, after the memory limit of its process. */
export const programArguments = (): string[] => process.argv.slice(3)

/**
 * Answers the requests to a confined process, one after the other. The process ends with its parent, and above its memory
 * limit.
 * @param answer reads the content of a request; `send` sends parts of the answer. It must not reject.
 */
export async function answerRequests<Request, Part, Answer>(
  answer: (content: Buffer, request: Request, send: (part: Part) => void) => Promise<Answer>,
): Promise<void> {
  const memoryBytes = Number(process.argv[2])
  const send = (message: ConfinedAnswer<Part, Answer>) => process.send?.(message)
  process.on('disconnect', () => process.exit())
  const monitor = new Worker(new URL('./memory-monitor.ts', import.meta.url), {
    workerData: { parent: process.ppid, memoryBytes },
    resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 4 },
  })
  await once(monitor, 'online')
  process.on('message', async ({ size, request }: ConfinedRequest<Request>) => {
    const content = await readContent(size)
    const end = await answer(content, request, part => send({ part }))
    send({ end, isReusable: process.memoryUsage.rss() < memoryBytes / 2 })
  })
}

async function readContent(size: number): Promise<Buffer> {
  const content = Buffer.allocUnsafeSlow(size)
  for (let filled = 0; filled < size; ) {
    const part: Buffer | null = process.stdin.read(Math.min(size - filled, process.stdin.readableLength))
    if (part) filled += part.copy(content, filled)
    else await once(process.stdin, 'readable')
  }
  return content
}
