"""An app of the shape of Flower's quickstart-pytorch, with records made here: no data set is fetched.

Nothing in it knows of privacy; tests put the lines of docs/flower-records.md into it.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SHAPE = (1, 8, 8)
RECORDS = 60


class Net(nn.Module):
    """Two convolutions and two dense layers, as in the quickstart, but smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, 2), nn.Conv2d(4, 4, 2)
        self.fc1, self.fc2 = nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(self.pool(functional.relu(self.conv1(x)))))
        scores: Tensor = self.fc2(functional.relu(self.fc1(x.flatten(1))))
        return scores


class Images(Dataset):
    """Bright and dark images, as dictionaries, which is how `flwr-datasets` hands records out."""

    def __init__(self, partition: int) -> None:
        draw = torch.Generator().manual_seed(partition)
        self.labels = torch.randint(0, 2, (RECORDS,), generator=draw)
        noise = torch.rand((RECORDS, *SHAPE), generator=draw)
        self.images = noise * 0.5 + self.labels.view(-1, 1, 1, 1) * 0.5

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"img": self.images[index], "label": int(self.labels[index])}


def load_data(partition: int, batch_size: int) -> DataLoader:
    return DataLoader(Images(partition), batch_size=batch_size, shuffle=True)


def train_net(net: Net, trainloader: DataLoader, epochs: int, lr: float) -> float:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(batch["img"]), batch["label"])
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(trainloader)


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], 16)
    loss = train_net(net, trainloader, 1, message.content["config"]["lr"])
    told = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(told)})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images = Images(context.node_config["partition-id"])
    with torch.no_grad():
        right = (net(images.images).argmax(1) == images.labels).float().mean().item()
    told = {"eval_acc": right, "num-examples": len(images)}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)
