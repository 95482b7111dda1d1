/** Whether a text has the form of an ID, such as `agent_01k5p3vd7r9hj2x8m4qcw6tz0e`. */
export const isId = (text: string): boolean => /^[a-z]+(_[a-z]+)*_[0-9a-z]{20,}$/.test(text)
