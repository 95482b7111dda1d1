import { Combobox, Textarea, useCombobox } from '@mantine/core'
import { useRef } from 'react'
import { useActions } from '#access.ts'
import * as strings from '#strings.ts'

/** Actions that a completion offers. */
const OFFERED = 8

/** The incomplete quoted action before the cursor: its offset in the text, and its characters so far. */
function actionAt(text: string, cursor: number): { begin: number; written: string } | null {
  const written = /"([\w*-]+(?::[\w*]*)?)$/.exec(text.slice(0, cursor))?.[1]
  return written === undefined ? null : { begin: cursor - written.length, written }
}

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
  const combobox = useCombobox()
  const area = useRef<HTMLTextAreaElement>(null)
  const current = actionAt(value, area.current?.selectionStart ?? value.length)
  const wanted = current?.written.toLowerCase() ?? ''
  const offered = current
    ? actions
        .filter(({ action }) => action.toLowerCase().includes(wanted) && action !== current.written)
        .toSorted(
          (one, other) =>
            Number(other.action.toLowerCase().startsWith(wanted)) - Number(one.action.toLowerCase().startsWith(wanted)),
        )
        .slice(0, OFFERED)
    : []
  const complete = (action: string) => {
    if (!current) return
    const rest = value.slice(current.begin + current.written.length)
    const begin = `${value.slice(0, current.begin)}${action}`
    onChange(`${begin}${rest}`)
    combobox.closeDropdown()
    // The cursor moves after the action once the text is drawn.
    requestAnimationFrame(() => {
      area.current?.focus()
      area.current?.setSelectionRange(begin.length, begin.length)
    })
  }
  return (
    <Combobox store={combobox} onOptionSubmit={complete} withinPortal={false}>
      <Combobox.Target withKeyboardNavigation={combobox.dropdownOpened && offered.length > 0}>
        <Textarea
          ref={area}
          label={strings.policies.document}
          description={strings.policies.documentHelp}
          error={error}
          value={value}
          onChange={event => {
            onChange(event.currentTarget.value)
            const { selectionStart } = event.currentTarget
            if (actionAt(event.currentTarget.value, selectionStart)) combobox.openDropdown()
            else combobox.closeDropdown()
            combobox.resetSelectedOption()
          }}
          onBlur={() => combobox.closeDropdown()}
          autosize
          minRows={12}
          maxRows={30}
          spellCheck={false}
          classNames={{ input: 'mono' }}
          required
        />
      </Combobox.Target>
      <Combobox.Dropdown hidden={offered.length === 0}>
        <Combobox.Options aria-label={strings.actions}>
          {offered.map(({ action, description }) => (
            <Combobox.Option value={action} key={action}>
              <span className="mono">{action}</span> {description}
            </Combobox.Option>
          ))}
        </Combobox.Options>
      </Combobox.Dropdown>
    </Combobox>
  )
}
