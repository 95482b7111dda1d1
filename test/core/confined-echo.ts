/** Program of confined-processes.test.ts: answers with its process and the content. */
import { answerRequests } from '#core/threads/confined-program.ts'

await answerRequests(async (content: Buffer, { delayMs }: { delayMs: number }) => {
  await new Promise(resolve => setTimeout(resolve, delayMs))
  return { pid: process.pid, text: content.subarray(0, 100).toString() }
})
