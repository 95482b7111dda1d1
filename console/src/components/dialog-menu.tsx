import { ActionIcon, Menu, Modal } from '@mantine/core'
import { IconDots } from '@tabler/icons-react'
import { type ReactNode, useState } from 'react'

/** An entry of a menu that opens a dialog; `content` receives a function that closes it. */
export type DialogEntry = { title: string; content: (close: () => void) => ReactNode }

/** A menu whose entries open dialogs. */
export function DialogMenu({ label, entries }: { label: string; entries: DialogEntry[] }) {
  const [title, setTitle] = useState<string | null>(null)
  if (entries.length === 0) return null
  const close = () => setTitle(null)
  const open = entries.find(entry => entry.title === title)
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon aria-label={label} size="md">
            <IconDots size={18} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {entries.map(entry => (
            <Menu.Item key={entry.title} onClick={() => setTitle(entry.title)}>
              {entry.title}
            </Menu.Item>
          ))}
        </Menu.Dropdown>
      </Menu>
      <Modal opened={open !== undefined} onClose={close} title={open?.title} size="lg">
        {open?.content(close)}
      </Modal>
    </>
  )
}
