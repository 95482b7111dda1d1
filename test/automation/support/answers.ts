export const CHOICES = ['yes', 'no', 'later'] as const

/** What people, and senders of payloads, answer a node that waits for them: it follows from the node's id alone. */
export function answerOf(nodeId: string): { choice: (typeof CHOICES)[number]; n: number } {
  const sum = [...nodeId].reduce((total, letter) => (total * 31 + letter.charCodeAt(0)) % 9973, 7)
  return { choice: CHOICES[sum % CHOICES.length], n: sum % 10 }
}
