/** A prompt that makes the mock model give these replies, one a step. */
export const scriptOf = (...replies: object[]) => `@double ${JSON.stringify(replies)}`

/** A reply of the mock model that calls a tool. */
export const toolCall = (name: string, args: object = {}) => ({ tool_calls: [{ name, args }] })
