import { Combobox, Textarea, type TextareaProps, useCombobox } from '@mantine/core'
import { type KeyboardEvent, type ReactNode, useRef, useState } from 'react'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { writeAt } from './write-at.ts'

/** What may be written at a place of a text. */
export type Completion = {
  /** The part of the text that an option replaces. */
  begin: number
  end: number
  /** Whether the options appear while the text is written; otherwise on request. */
  isOffered: boolean
  options: { text: string; label: string; about?: ReactNode }[]
}

/** Options that are shown. */
const SHOWN = 8

/** A text in several lines with completion: while it is written, and with Ctrl Space. */
export function CompletedText({
  value,
  onChange,
  complete,
  id,
  ...area
}: {
  value: string
  onChange: (value: string) => void
  complete: (text: string, place: number) => Completion | null
} & Omit<TextareaProps, 'value' | 'onChange' | 'ref' | 'onBlur' | 'onKeyDown' | 'onClick'>) {
  const combobox = useCombobox()
  const input = useRef<HTMLTextAreaElement>(null)
  const [place, setPlace] = useState(0)
  const current = combobox.dropdownOpened ? complete(value, place) : null
  const options = current?.options.slice(0, SHOWN) ?? []
  const open = (text: string, at: number, isRequested: boolean) => {
    setPlace(at)
    combobox.resetSelectedOption()
    const found = complete(text, at)
    if (found && (isRequested || found.isOffered)) combobox.openDropdown()
    else combobox.closeDropdown()
  }
  const insert = (index: string) => {
    const option = options[Number(index)]
    if (!current || !option) return
    const begin = `${value.slice(0, current.begin)}${option.text}`
    writeAt(input.current, begin.length, () => {
      onChange(`${begin}${value.slice(current.end)}`)
      combobox.closeDropdown()
    })
  }
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key === ' ' && event.ctrlKey) {
      event.preventDefault()
      open(value, event.currentTarget.selectionStart, true)
    } else if (['ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(event.key)) combobox.closeDropdown()
  }
  return (
    <Combobox store={combobox} onOptionSubmit={insert} withinPortal={false}>
      <Combobox.Target withKeyboardNavigation={options.length > 0}>
        <Textarea
          spellCheck={false}
          classNames={{ input: 'mono' }}
          {...area}
          id={id}
          ref={input}
          value={value}
          onChange={event => {
            onChange(event.currentTarget.value)
            open(event.currentTarget.value, event.currentTarget.selectionStart, false)
          }}
          onKeyDown={onKeyDown}
          onClick={() => combobox.closeDropdown()}
          onBlur={() => combobox.closeDropdown()}
        />
      </Combobox.Target>
      <Combobox.Dropdown hidden={options.length === 0}>
        <Combobox.Options aria-label={strings.completions} mah={260} style={{ overflowY: 'auto' }}>
          {options.map(({ label, about }, index) => (
            <Combobox.Option value={String(index)} key={label}>
              <span className="mono">{visible(label)}</span> {about}
            </Combobox.Option>
          ))}
        </Combobox.Options>
      </Combobox.Dropdown>
    </Combobox>
  )
}
