import { useActions } from '#access.ts'
import * as strings from '#strings.ts'
import { CompletedText, type Completion } from './completed-text.tsx'

/** The text of a policy as JSON, which completes the names of actions. */
export function PolicyEditor({
  value,
  onChange,
  error,
}: {
  value: string
  onChange: (value: string) => void
  error?: string
}) {
  const actions = useActions()
  const complete = (text: string, place: number): Completion | null => {
    const written = /"([\w*-]+(?::[\w*]*)?)$/.exec(text.slice(0, place))?.[1]
    if (written === undefined) return null
    const wanted = written.toLowerCase()
    const isFirst = (action: string) => Number(action.toLowerCase().startsWith(wanted))
    const options = actions
      .filter(({ action }) => action.toLowerCase().includes(wanted) && action !== written)
      .toSorted((one, other) => isFirst(other.action) - isFirst(one.action))
      .map(({ action, description }) => ({ text: action, label: action, about: description }))
    return { begin: place - written.length, end: place, isOffered: true, options }
  }
  return (
    <CompletedText
      label={strings.policies.document}
      description={strings.policies.documentHelp}
      error={error}
      value={value}
      onChange={onChange}
      complete={complete}
      autosize
      minRows={12}
      maxRows={30}
      required
    />
  )
}
