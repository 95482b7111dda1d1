import { Button, Combobox, Menu, Stack, Text, Textarea, useCombobox } from '@mantine/core'
import type { PreparedReply } from '@muster/client'
import { listPreparedReplies } from '@muster/client/operations'
import { IconMessageBolt } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { type ReactNode, useEffect, useRef, useState } from 'react'
import { api } from '#api.ts'
import { sendOnEnter } from '#components/send-key.ts'
import { visible } from '#components/text.tsx'
import { writeAt } from '#components/write-at.ts'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.preparedReplies

/** Prepared replies that the field offers; more are found by their name. */
const OFFERED = 20

/** Reads prepared replies by a part of their name; none for those who may not list them. */
function usePreparedReplies(projectId: string, name: string): PreparedReply[] {
  const mayList = usePermissions(projectId)(listPreparedReplies) === true
  const { data = [] } = useQuery<PreparedReply[]>({
    queryKey: ['prepared-replies', projectId, 'offered', name],
    queryFn: async ({ signal }) =>
      (
        await listPreparedReplies(
          api,
          { project_id: projectId, name: name || undefined, limit: OFFERED },
          { signal },
        ).page()
      ).data,
    enabled: mayList,
    placeholderData: previous => previous,
    staleTime: 30_000,
  })
  return data
}

/** Returns the offset of a slash that begins a word of one line before the cursor, and the text after it; null without one. */
function slashAt(text: string, cursor: number): { begin: number; name: string } | null {
  const begin = text.lastIndexOf('/', cursor - 1)
  if (begin < 0 || cursor === 0) return null
  const name = text.slice(begin + 1, cursor)
  const isWord = begin === 0 || text[begin - 1].trim() === ''
  return isWord && !name.includes('\n') ? { begin, name } : null
}

/** The text of a reply; the placeholder stays where the name is not known. */
const filled = (text: string, customerName: string | undefined): string =>
  customerName === undefined ? text : text.replaceAll('{{customer_name}}', () => customerName)

/**
 * A field for a reply, sent by Enter. Prepared replies are inserted by a slash and a part of their name, or from the menu.
 */
export function ReplyField({
  projectId,
  customerName,
  label,
  description,
  value,
  onChange,
  onEnter,
  actions,
}: {
  projectId: string
  customerName?: string
  label: string
  description?: ReactNode
  value: string
  onChange: (text: string) => void
  onEnter: () => void
  actions: ReactNode
}) {
  const field = useRef<HTMLTextAreaElement>(null)
  const [cursor, setCursor] = useState(value.length)
  const combobox = useCombobox()
  const slash = slashAt(value, cursor)
  const replies = usePreparedReplies(projectId, slash?.name ?? '')
  const wanted = slash?.name.toLowerCase() ?? ''
  // The replies of the name before are shown until the next are read.
  const offered = slash ? replies.filter(({ name }) => name.toLowerCase().includes(wanted)) : []
  const isOpen = combobox.dropdownOpened && offered.length > 0
  useEffect(() => {
    if (isOpen) combobox.selectFirstOption()
  }, [isOpen, offered.map(({ id }) => id).join()])
  const insert = ({ text }: PreparedReply, begin: number, end: number) => {
    const before = `${value.slice(0, begin)}${filled(text, customerName)}`
    writeAt(field.current, before.length, () => {
      onChange(`${before}${value.slice(end)}`)
      setCursor(before.length)
      combobox.closeDropdown()
    })
  }
  return (
    <Stack gap="sm">
      <Combobox
        store={combobox}
        onOptionSubmit={id => {
          const reply = offered.find(each => each.id === id)
          if (reply && slash) insert(reply, slash.begin, cursor)
        }}
        withinPortal={false}
        position="top-start"
      >
        <Combobox.Target withKeyboardNavigation={isOpen} withExpandedAttribute={false}>
          <Textarea
            ref={field}
            label={label}
            description={description}
            autosize
            minRows={2}
            maxRows={8}
            value={value}
            onChange={event => {
              const { value: text, selectionStart } = event.currentTarget
              onChange(text)
              setCursor(selectionStart)
              if (slashAt(text, selectionStart)) combobox.openDropdown()
              else combobox.closeDropdown()
            }}
            onBlur={() => combobox.closeDropdown()}
            onKeyDown={isOpen ? undefined : sendOnEnter(onEnter)}
          />
        </Combobox.Target>
        <Combobox.Dropdown hidden={!isOpen}>
          <Combobox.Options aria-label={texts.title} mah={240} style={{ overflowY: 'auto' }}>
            {offered.map(reply => (
              <Combobox.Option value={reply.id} key={reply.id}>
                <Reply reply={reply} />
              </Combobox.Option>
            ))}
          </Combobox.Options>
        </Combobox.Dropdown>
      </Combobox>
      <div style={{ display: 'flex', flexWrap: 'wrap', gap: 8, justifyContent: 'flex-end' }}>
        <ReplyMenu
          projectId={projectId}
          onChoose={reply => {
            const at = field.current?.selectionStart ?? value.length
            insert(reply, at, field.current?.selectionEnd ?? at)
          }}
        />
        {actions}
      </div>
    </Stack>
  )
}

function Reply({ reply: { name, text } }: { reply: PreparedReply }) {
  return (
    <>
      <Text size="sm" fw={600}>
        {visible(name)}
      </Text>
      <Text size="xs" lineClamp={1}>
        {visible(text)}
      </Text>
    </>
  )
}

/** The menu of prepared replies; nothing without any. */
function ReplyMenu({ projectId, onChoose }: { projectId: string; onChoose: (reply: PreparedReply) => void }) {
  const replies = usePreparedReplies(projectId, '')
  if (replies.length === 0) return null
  return (
    <Menu position="top-end" withinPortal={false}>
      <Menu.Target>
        <Button variant="default" leftSection={<IconMessageBolt size={16} />}>
          {texts.title}
        </Button>
      </Menu.Target>
      <Menu.Dropdown mah={300} maw={360} style={{ overflowY: 'auto' }}>
        <Menu.Label>{texts.hint}</Menu.Label>
        {replies.map(reply => (
          <Menu.Item key={reply.id} onClick={() => onChoose(reply)}>
            <Reply reply={reply} />
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  )
}
